"""Layers without features: a warning that names them, or an error where a threshold leaves none at all."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import interbasis
from interbasis import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.lib.empty_layers import MAX_NAMES, EmptyLayersError, check_features
from interbasis.numerics.linalg import SpectrumCut


def graph_of(empty: int, filled: int, threshold: float, dropped: float) -> InteractionGraph:
    """Layers that keep the constant alone because a variance was dropped, then others, then the last."""
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    graph = interbasis.build(interbasis.from_torch(module), torch.randn(20, 3).double(), progress=False).graph
    whole, last = graph.layers[0], graph.layers[-1]
    cut = SpectrumCut(0, 3, 1.0, None, dropped)
    one = torch.ones(1, 1).double()
    bare = [LayerBasis(f"layer.{k}", one, one, variance_cut=cut) for k in range(empty)]
    config = graph.config.model_copy(update={"threshold": threshold})
    return replace(graph, layers=[*bare, *[whole] * filled, last], config=config)


def test_layers_that_nothing_varies_at_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    check_features(graph_of(2, 1, 1e-6, 1e-30))
    (message,) = caplog.messages
    assert "layer.0, layer.1" in message
    check_features(graph_of(2, 1, 1e-6, 1e-30), warns=False)
    check_features(graph_of(0, 2, 1e-6, 1e-30))
    assert len(caplog.messages) == 1


def test_a_threshold_above_everything(caplog: pytest.LogCaptureFixture) -> None:
    check_features(graph_of(MAX_NAMES + 2, 1, 10.0, 2.0))
    (message,) = caplog.messages
    assert "threshold 10" in message
    assert f"layer.{MAX_NAMES - 1} and 2 more" in message
    with pytest.raises(EmptyLayersError, match=r"threshold 10 .*layer\.0"):
        check_features(graph_of(1, 0, 10.0, 2.0))
