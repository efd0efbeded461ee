"""The demo, from the shipped checkpoint to the page."""

import contextlib
import json
from pathlib import Path

import interbasis
from interbasis.cli import main


def test_the_demo_ends_with_a_report_and_a_page(capsys, tmp_path):
    with contextlib.suppress(SystemExit):
        main(["demo", "--out", str(tmp_path / "demo"), "--json"])
    summary = json.loads(capsys.readouterr().out)
    assert len(summary["edges_required"]) == 3
    assert all(
        0 < few < many / 20 for few, many in zip(summary["edges_required"], summary["possible"], strict=True)
    )
    assert summary["accuracy"] > 0.999
    for place, words in (("report", "What this evidence allows"), ("page", "cos(15x")):
        text = Path(summary[place]).read_text(encoding="utf-8")
        assert text.lstrip().lower().startswith("<!doctype html>")
        assert words in text
    assert len(interbasis.load(summary["run"]).layers) == 4
