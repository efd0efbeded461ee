"""`interbasis show MODEL`: sections before anything is built."""

from pathlib import Path

import pytest
from torch import nn

import interbasis
from command_line import Cli
from interbasis.network.summary import describe
from interbasis.show.result_tables import section_tables

MODULE = """
import torch
from torch import nn


class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.read, self.write = nn.Embedding(7, 4), nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x):
        x = self.embed(x)
        return x + self.write(torch.softmax(self.read(x), -1))


def mine():
    return Mine(), torch.arange(6).view(2, 3)
"""


def test_a_model_s_sections_are_listed_with_what_comes_before_them(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_show_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    described = cli("show", "python:odd_show_module:mine", "--json").json
    assert "embedding in embed" in described["before"]
    costs = [section["cost"] for section in described["sections"]]
    assert costs[0].startswith("general: a backward pass for each of 6 coordinates")
    assert described["sections"][0]["source"] == "read"
    table = cli("show", "python:odd_show_module:mine").out
    assert "before the first node layer" in table


def test_of_many_sections_the_first_and_the_last_are_listed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep_show_module.py").write_text(
        "from torch import nn\n\n\ndef deep():\n"
        "    layers = [part for _ in range(40) for part in (nn.Linear(3, 3), nn.ReLU())]\n"
        "    return nn.Sequential(*layers)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    few, every = (cli("show", "python:deep_show_module:deep", *options).out for options in ((), ("--all",)))
    assert "12 of 40 sections are shown, --all" in " ".join(few.split())
    assert "linear.20" not in few
    assert "linear.20" in every


def test_of_many_sections_after_a_cut_the_last_is_listed() -> None:
    layers = [part for _ in range(9) for part in (nn.Linear(3, 3), nn.ReLU())]
    network = interbasis.from_torch(nn.Sequential(*layers))
    summary = describe(network.between(network.layers[:2]))
    few, every = (
        [part for part in section_tables(summary, "deep", shown) if "after the last" in str(part)]
        for shown in (False, True)
    )
    assert len(every) == 8
    assert few == ["after the last node layer: 7 sections (--all prints them)", every[-1]]
