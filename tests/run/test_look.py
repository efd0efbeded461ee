"""A first look at a language model, by the command."""

import json
from pathlib import Path

import pytest

from command_line import Cli

pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
from pages import README

STORIES = README.parent.parent / "shared" / "data" / "tinystories-gpt-280k"


@pytest.mark.slow
@pytest.mark.skipif(not STORIES.is_dir(), reason="the TinyStories GPT is not here")
def test_a_first_look_is_a_page_with_labels_and_a_trace(tmp_path: Path, cli: Cli) -> None:
    ended = cli("look", f"hf:{STORIES}", "--seconds", 4, "--out", tmp_path / "look", "--json")
    assert ended.code == 0, ended.err
    seen = json.loads(ended.out)
    assert seen["blocks"][-1] == "4"
    assert seen["all_blocks"] == 5
    assert seen["prompt"].startswith("The ferry")
    assert all(len(labels) == 4 for labels in seen["labels"].values())
    assert seen["seconds_for_more"] > 0
    page = (tmp_path / "look.html").read_text(encoding="utf-8")
    assert seen["trace"] in page
    assert cli("show", tmp_path / "look").code == 0


def test_other_networks_are_refused(tmp_path: Path, cli: Cli) -> None:
    ended = cli("look", "modadd", "--data", "modadd", "--out", tmp_path / "look")
    assert ended.code == 2
    assert "is for language models" in ended.err
    assert not (tmp_path / "look").exists()
