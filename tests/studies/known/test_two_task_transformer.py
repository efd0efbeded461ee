"""Two tasks in one transformer: the network is the one that was trained, and both tasks are measured."""

import pytest
import torch

import interbasis
from two_task_transformer import TwoTaskTransformerRecipe, train_two_task_transformer
from two_tasks import TwoTasks, score_two_tasks

RECIPE = TwoTaskTransformerRecipe(p=5, q=5, width=16, hidden=16, steps=60, samples=200, test_samples=100)


@pytest.fixture(scope="module")
def trained() -> TwoTasks:
    return train_two_task_transformer(RECIPE)


def test_the_tasks_are_what_they_are_called(trained: TwoTasks) -> None:
    x, y, u, v = (trained.inputs[:, k] for k in range(4))
    assert torch.equal(trained.labels[:, 0], (x + y) % 5)
    assert torch.equal(trained.labels[:, 1], ((u - 5) * (v - 5)) % 5)
    assert (u > 5).all()  # 0 is no factor
    assert (trained.inputs[:, 4] == 10).all()
    for pair in (slice(0, 2), slice(2, 4)):
        seen = {tuple(row) for row in trained.inputs[:, pair].tolist()}
        assert not seen & {tuple(row) for row in trained.test_inputs[:, pair].tolist()}


def test_training_goes_through_the_network_that_comes_out(trained: TwoTasks) -> None:
    """Both losses fell below those of a network at initialisation, on what it was trained on."""
    labels = trained.labels
    untrained = train_two_task_transformer(RECIPE.model_copy(update={"steps": 0}))
    losses = [
        torch.nn.functional.cross_entropy(known.by_task(trained.inputs).mT, labels, reduction="none").mean(0)
        for known in (trained, untrained)
    ]
    assert (losses[0] < losses[1] - 0.2).all()
    again = train_two_task_transformer(RECIPE)
    assert torch.equal(again.network(trained.inputs), trained.network(trained.inputs))


def test_scores(trained: TwoTasks) -> None:
    graph = interbasis.build(trained.network, trained.inputs, progress=False).graph
    scores = score_two_tasks(trained, graph, null_graphs=2)
    assert 0 <= scores.selectivity <= 1
    assert -1 <= scores.effects <= 1
    assert scores.modules >= 1
