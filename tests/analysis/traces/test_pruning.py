"""Influence, scores and pruning against the same rules on a dense matrix of all nodes."""

from typing import Any

import pytest
import torch
from torch import Tensor

from interbasis.analysis.traces.records import TARGET, Trace
from traced_models import ALL, traced


class DenseGraph:
    """A trace as one matrix, with influence, scores and pruning as attribution graphs define them."""

    def __init__(self, trace: Trace) -> None:
        self.tokens = {node.name for node in trace.nodes if node.layer == trace.layers[0].name}
        self.errors = {error.name for error in trace.errors}
        self.names = [TARGET, *(node.name for node in trace.nodes), *(error.name for error in trace.errors)]
        index = {name: k for k, name in enumerate(self.names)}
        self.A = torch.zeros(len(index), len(index), dtype=torch.float64)  # [into, from]
        for edge in trace.edges:
            self.A[index[edge.target], index[edge.source]] = abs(edge.weight)

    @staticmethod
    def normalised(A: Tensor) -> Tensor:
        return A / A.sum(1, keepdim=True).clamp_min(1e-300)

    def influence(self, A: Tensor) -> Tensor:
        """The target's row of A + A² + … = A (I − A)⁻¹."""
        A = self.normalised(A)
        return torch.linalg.solve((torch.eye(len(A), dtype=A.dtype) - A).mT, A[0])

    def among(self, chosen: set[str]) -> Tensor:
        return torch.tensor([name in chosen for name in self.names])

    def scores(self) -> tuple[float, float]:
        """Replacement and completeness."""
        influence, errors, tokens_ = self.influence(self.A), self.among(self.errors), self.among(self.tokens)
        ends = influence[tokens_].sum() + influence[errors].sum()
        weights = influence + self.among({TARGET})
        through = 1 - self.normalised(self.A)[:, errors].sum(1)
        return (influence[tokens_].sum() / ends).item(), ((weights * through).sum() / weights.sum()).item()

    def pruned(self, node_threshold: float, edge_threshold: float) -> set[tuple[str, str]]:
        """The edges that are left, as (source, target)."""

        def floor(values: Tensor, share: float) -> Tensor:
            ranked = values.flatten().sort(descending=True).values
            reached = (ranked.cumsum(0) / ranked.sum()) >= share
            return ranked[reached.int().argmax()]

        influence = self.influence(self.A)
        always = self.among(self.tokens | {TARGET})
        nodes = (influence >= floor(influence, node_threshold)) | always
        A = self.A * nodes[:, None] * nodes
        scores = self.normalised(A) * (self.influence(A) + self.among({TARGET}))[:, None]
        edges = scores >= floor(scores, edge_threshold)
        without_sources, without_targets = self.among(self.tokens | self.errors), self.among({TARGET})
        left = -1
        while left != int(edges.sum()):
            left = int(edges.sum())
            alive = (edges.any(0) | without_targets) & (edges.any(1) | without_sources)
            edges = edges & alive[:, None] & alive
        return {(self.names[source], self.names[target]) for target, source in edges.nonzero().tolist()}


def test_influence_and_scores_are_those_of_a_dense_matrix() -> None:
    trace = traced("gpt2", method="gradient", **ALL)
    dense = DenseGraph(trace)
    influence = dict(zip(dense.names, dense.influence(dense.A).tolist(), strict=True))
    assert len(trace.errors) > 5
    one: Any
    for one in (*trace.nodes, *trace.errors):
        assert one.influence == pytest.approx(influence[one.name], abs=1e-10)
    assert sum(token.influence for token in trace.tokens) + trace.scores.error_share == pytest.approx(1)
    assert (trace.scores.replacement, trace.scores.completeness) == pytest.approx(dense.scores(), abs=1e-10)


@pytest.mark.parametrize("name", ["gpt2", "modadd"])
@pytest.mark.parametrize("thresholds", [(0.8, 0.98), (0.9, 0.9)])
def test_pruning_is_that_of_a_dense_matrix(name: str, thresholds: tuple[float, float]) -> None:
    node, edge = thresholds
    whole = traced(name, method="gradient", **ALL)
    pruned = traced(name, method="gradient", max_nodes=10**6, node_threshold=node, edge_threshold=edge)
    expected = DenseGraph(whole).pruned(node, edge)
    assert 10 < len(expected) < len(whole.edges) / 2
    assert {(one.source, one.target) for one in pruned.edges} == expected
    known = {node.name for node in pruned.nodes} | {error.name for error in pruned.errors}
    assert {one.source for one in pruned.edges} == known
    weights = {(one.source, one.target): one.weight for one in whole.edges}
    assert all(one.weight == weights[one.source, one.target] for one in pruned.edges)
