"""What the page is told about a run."""

import base64

import numpy as np
import pytest
import torch

from interbasis.graph.store import load
from interbasis.viewer.payload import graph_payload, run_payload, share_out


def array(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind)


def test_edges_are_the_graphs_own_strongest_first(lib):
    graph, payload = load(lib), run_payload(lib)
    for k, section in enumerate(payload["sections"]):
        sources, targets = array(section["sources"], "<u4"), array(section["targets"], "<u4")
        values = array(section["values"], "<f4")
        expected = graph.edges[k][targets.astype(int), sources.astype(int)].numpy()
        np.testing.assert_allclose(values, expected, rtol=1e-6)
        assert (np.diff(values) <= 0).all()
        assert (sources > 0).all()  # the constant's edges travel apart
        np.testing.assert_allclose(array(section["constant"], "<f4"), graph.edges[k][:, 0].numpy(), rtol=1e-6)
        assert section["held"] == section["nonzero"] == len(values)
        assert section["held_share"] == pytest.approx(1)


def test_what_is_left_out_is_said(lib):
    graph = load(lib)
    payload = graph_payload(graph, limit=300)
    assert sum(section["held"] for section in payload["sections"]) == 300
    for k, section in enumerate(payload["sections"]):
        inner = graph.edges[k][1 if graph.layers[k + 1].constant else 0 :, 1:]
        squares = inner.square().flatten().sort(descending=True).values
        kept = (squares[: section["held"]].sum() / squares.sum()).item()
        assert section["held_share"] == pytest.approx(kept, rel=1e-9)
        assert section["nonzero"] == int((inner > 0).sum()) > section["held"]


def test_outputs_as_one_are_the_root_of_the_sum_of_squares(lib):
    graph, payload = load(lib), run_payload(lib)
    last = array(payload["sections"][-1]["into_all"], "<f4")
    expected = graph.edges[-1].square().sum(0).sqrt()
    expected[0] = 0
    torch.testing.assert_close(torch.tensor(last).double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("limit", "sizes", "parts"),
    [(10, [2, 100, 100], [2, 4, 4]), (1000, [2, 3], [2, 3]), (0, [5], [0]), (7, [], []), (9, [9, 1], [8, 1])],
)
def test_the_limit_is_shared_out(limit, sizes, parts):
    assert share_out(limit, sizes) == parts


def test_results_of_an_older_graph_are_not_shown(lib, pca):
    payload = run_payload(lib)
    assert payload["results"]["ablation"]["edges_required"]
    assert payload["results"]["notes"] is None
    (pca / "ablation.json").write_bytes((lib / "ablation.json").read_bytes())
    assert run_payload(pca)["results"]["ablation"] is None


def test_a_graph_without_edges_has_a_page(lib):
    graph = load(lib)
    bare = type(graph)(graph.layers, [], graph.config, graph.provenance)
    assert graph_payload(bare)["sections"] == []
