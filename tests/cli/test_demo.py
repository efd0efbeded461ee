"""The demo, from the shipped checkpoint to the page."""

import json
from pathlib import Path

from command_line import Cli
from interbasis.graph.store import load
from pages import README


def test_the_demo_ends_with_a_report_and_a_page(cli: Cli, tmp_path: Path) -> None:
    ended = cli("demo", "--out", tmp_path / "demo", "--json")  # with its steps on standard error
    assert ended.code == 0
    summary = json.loads(ended.out)
    sections = summary["ablation"]["sections"]
    assert {name: row["count"] for name, row in sections.items()} == {
        "attn_in.0": 53, "mlp_in.0": 33, "unembed": 531,
    }  # fmt: skip
    assert [row["possible"] for row in sections.values()] == [4278, 4002, 9918]
    waves = [f"cos({frequency}x+{frequency}y)" for frequency in (15, 15, 1, 1, 39, 39, 18, 18)]
    assert [label.split()[1] for label in summary["carriers"]] == waves
    assert summary["frequencies"] == [15, 1, 39, 18]
    assert summary["ablation"]["baseline"] > 0.999
    readme = README.read_text(encoding="utf-8")
    for source, row in sections.items():
        assert f"{row['count']} of {row['possible']:,} in {source} → {row['target']}\n" in readme
    assert f"with 4 frequencies: {', '.join(map(str, summary['frequencies']))}.\n" in readme
    for place, words in (("report", "What this evidence allows"), ("page", "cos(15x")):
        text = Path(summary[place]).read_text(encoding="utf-8")
        assert text.lstrip().lower().startswith("<!doctype html>")
        assert words in text
    assert len(load(summary["run"]).layers) == 4
