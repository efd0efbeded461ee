"""Text that just works: no separators, documents that begin as the tokenizer says, conversations."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interbasis import InterbasisError
from interbasis.data.text import open_tokenizer
from interbasis.graph.named_models import open_data

WORDS = ["[UNK]", "<|endoftext|>", "<s>", "<|user|>", "<|model|>", *(f"w{k}" for k in range(20))]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERBASIS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tokenizer(tmp_path: Path) -> Callable[..., Any]:
    """A function that writes a tokenizer's folder with these settings."""
    tokenizers = pytest.importorskip("tokenizers")

    def make(front: bool = False, template: str | None = None, **settings: Any) -> Path:
        model = tokenizers.models.WordLevel({w: k for k, w in enumerate(WORDS)}, unk_token="[UNK]")
        made = tokenizers.Tokenizer(model)
        made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        made.add_special_tokens(WORDS[1:5])
        if front:
            made.post_processor = tokenizers.processors.TemplateProcessing(
                single="<s> $A", special_tokens=[("<s>", 2)]
            )
        folder = tmp_path / f"tokenizer{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        made.save(str(folder / "tokenizer.json"))
        if template is not None:
            (folder / "chat_template.jinja").write_text(template)
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        return folder

    return make


def written(tmp_path: Path, words: int) -> Path:
    path = tmp_path / "novel.txt"
    path.write_text(" ".join(f"w{k % 20}" for k in range(words)))
    return path


def test_text_without_separators_is_split_by_tokens(tmp_path: Path, tokenizer: Callable[..., Any]) -> None:
    spec = f"text:{written(tmp_path, 1000)},tokenizer={tokenizer()},context=9"
    train, test = open_data(spec, "train"), open_data(spec, "test")
    assert (len(train), len(test)) == (90, 10)
    whole = open_data(f"{spec},part=all")
    assert train.all()[0].tolist() + test.all()[0].tolist() == whole.all()[0].tolist()
    again = open_data(test.spec, "test")
    assert again.all()[1].tolist() == test.all()[1].tolist()


def test_pieces_of_one_document_are_split_too(tmp_path: Path, tokenizer: Callable[..., Any]) -> None:
    spec = f"text:{written(tmp_path, 1000)},tokenizer={tokenizer()},context=9,per=document"
    train, test = (open_data(spec, split).all()[1] for split in ("train", "test"))
    assert abs(int((test >= 0).sum()) - 100) <= 10
    assert int((train >= 0).sum()) + int((test >= 0).sum()) >= 998


def test_one_long_document_among_short_ones_does_not_become_the_test_set(
    tmp_path: Path, tokenizer: Callable[..., Any]
) -> None:
    path = tmp_path / "mixed.txt"
    path.write_text("w1 w2<|endoftext|>w3 w4<|endoftext|>" + " ".join(["w5"] * 996))
    spec = f"text:{path},tokenizer={tokenizer()},context=9"
    train, test = open_data(spec, "train"), open_data(spec, "test")
    assert (len(train), len(test)) == (90, 10)


def test_what_is_too_short_says_so(tmp_path: Path, tokenizer: Callable[..., Any]) -> None:
    with pytest.raises(InterbasisError, match=r"21 tokens, too few.* 10% .*context"):
        open_data(f"text:{written(tmp_path, 20)},tokenizer={tokenizer()},context=64", "test")
    (tmp_path / "nothing.txt").touch()
    with pytest.raises(InterbasisError, match=r"nothing\.txt is empty"):
        open_data(f"text:{tmp_path / 'nothing.txt'},tokenizer={tokenizer()}", "train")


def test_more_positions_than_the_model_was_made_for_are_warned_of(
    tmp_path: Path, tokenizer: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    spec = f"text:{written(tmp_path, 2000)},tokenizer={tokenizer()}"
    with caplog.at_level("WARNING", "interbasis"):
        assert open_data(f"{spec},context=32", context=32).all()[0].shape[1] == 32
        assert open_data(spec, context=None, tokenizer="any").all()[0].shape[1] == 1024
        assert not caplog.messages
        open_data(f"{spec},context=64", context=32)
    assert caplog.messages == ["samples of 64 positions, but the model was made for at most 32"]


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "what the tokenizer puts in front": ({"front": True}, "<s>"),
    "named": ({"bos_token": "<s>"}, "<s>"),
    "named and switched off": ({"bos_token": "<s>", "add_bos_token": False}, "<|endoftext|>"),
    "a chat's marker": ({"bos_token": "<s>", "template": "{{ messages }}"}, "<|endoftext|>"),
    "with chats, but wanted": (
        {"bos_token": "<s>", "template": "{{ messages }}", "add_bos_token": True}, "<s>",
    ),
    "not named": ({}, "<|endoftext|>"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_documents_begin_as_the_tokenizer_says(tokenizer: Callable[..., Any], name: str) -> None:
    settings, expected = CASES[name]
    assert open_tokenizer(tokenizer(**settings)).bos == WORDS.index(expected)


TEMPLATE = "{% for m in messages %}<|{{ m.role }}|> {{ m.content }} {% endfor %}"


def test_conversations_are_written_by_the_chat_template(
    tmp_path: Path, tokenizer: Callable[..., Any]
) -> None:
    pytest.importorskip("transformers")
    rows = [
        {"messages": [{"role": "user", "content": "w1 w2"}, {"role": "model", "content": "w3"}]},
        {"messages": [{"role": "user", "content": "w4"}]},
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    folder = tokenizer(template=TEMPLATE, bos_token="<s>")
    inputs, labels = open_data(f"text:{path},tokenizer={folder},context=6,part=all").all()
    expected = [3, 6, 7, 4, 8, 3, 9]
    assert inputs[0].tolist() + labels[0, -1:].tolist() == expected
    with pytest.raises(InterbasisError, match="has no chat template"):
        open_data(f"text:{path},tokenizer={tokenizer()},context=6,part=all")


def test_lines_of_json_are_documents(tmp_path: Path, tokenizer: Callable[..., Any]) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"text": "w1 w2"}\n\n{"text": "w3"}\n')
    inputs, _ = open_data(f"text:{path},tokenizer={tokenizer()},context=4,part=all").all()
    assert inputs.tolist() == [[1, 6, 7, 1]]
    path.write_text("[1, 2]\n")
    with pytest.raises(InterbasisError, match=r"line 1: .* text or messages"):
        open_data(f"text:{path},tokenizer={tokenizer()},context=4,part=all")
