"""`interbasis show MODEL`: sections before anything is built."""

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


def test_a_model_s_sections_are_listed_with_what_comes_before_them(cli, tmp_path, monkeypatch):
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
