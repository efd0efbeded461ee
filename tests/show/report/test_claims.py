"""Sentences of a report about deep networks."""

from pathlib import Path

from torch import nn

from cases import mlp
from interbasis import build
from interbasis.show.report import claims
from interbasis.show.report.record import read_runs


def test_of_many_layers_a_sentence_names_the_extremes(tmp_path: Path) -> None:
    case = mlp(nn.ReLU(), widths=(*[3, 4] * 13, 2))
    build(case.network, case.inputs, basis="neuron", edge_method=None).save(tmp_path / "run")
    (run,) = read_runs([tmp_path / "run"])
    assert len(run.layers) == 27
    assert claims(run)[0].text.endswith("these numbers of features: from 3 (output) to 5 (linear.1).")
