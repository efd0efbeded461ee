"""How data say what they are."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from interbasis.analysis.features import ImageRendering, RowRendering, TokenRendering
from interbasis.analysis.features.contexts import default_rendering, renderings, vocabulary


def test_grey_pictures_without_a_dimension_of_channels_are_pictures() -> None:
    grey = torch.arange(2 * 5 * 6).view(2, 5, 6) / 60
    rendering = default_rendering(grey)
    assert isinstance(rendering, ImageRendering)
    assert (rendering.shape, rendering.low, rendering.high) == ((1, 5, 6), 0, grey.max().item())
    other = default_rendering(grey[:, None])
    assert isinstance(other, ImageRendering)
    assert rendering.picture(grey[0]) == other.picture(grey[0])
    assert default_rendering(grey[:, :3]).kind == "rows"  # too low for a picture
    assert default_rendering(grey[0]).kind == "rows"


def test_images_rows_and_plain_data() -> None:
    data = SimpleNamespace(kind="images", classes=("cat", "ship"), image=(3, 4, 5), tokenizer=None)
    assert renderings(data) == (ImageRendering((3, 4, 5), ("cat", "ship")), ("cat", "ship"), ("cat", "ship"))
    rows = SimpleNamespace(kind="rows", classes=("low", "high"))
    assert renderings(rows) == (RowRendering(("low", "high")), ("low", "high"), ("low", "high"))
    assert renderings([1, 2]) == (None, (), None)


def test_tokens_are_read_with_their_tokenizer(shared: Path) -> None:
    pytest.importorskip("tokenizers")
    folder = shared / "tinystories-gpt-280k"
    rendering, _, outputs = renderings(SimpleNamespace(kind="tokens", tokenizer=folder))
    assert isinstance(rendering, TokenRendering)
    assert len(outputs) == 512
    assert rendering.decode(300) == outputs[300]
    assert rendering.decode(9999) == "9999"
    assert any(text.startswith(" ") for text in outputs)


def test_without_a_tokenizer_tokens_are_numbers(tmp_path: Path) -> None:
    assert vocabulary(tmp_path) == []
    rendering, _, outputs = renderings(SimpleNamespace(kind="tokens", tokenizer=tmp_path))
    assert rendering.decode(7) == "7"
    assert outputs is None


def test_byte_level_tokens_are_characters(tmp_path: Path) -> None:
    """A character of several bytes is itself where it is one token; a part of one stays as it is written."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(["it’s a café’s menu’s"] * 20, vocab_size=290, min_frequency=2)
    made.save(str(tmp_path / "tokenizer.json"))
    texts = vocabulary(tmp_path)
    assert [texts[token] for token in made.encode("it’s a café").ids] == ["it", "’", "s", " a", " café"]
    assert "Ģ" in texts  # the second byte of ’, alone
