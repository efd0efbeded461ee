"""Two digits at once: trained in seconds, the same twice, and scored by interventions."""

import pytest
import torch

import interbasis
from two_tasks import TwoTaskRecipe, TwoTasks, score_two_tasks, train_two_tasks

RECIPE = TwoTaskRecipe(hidden=16, steps=150, samples=600, test_samples=200)


@pytest.fixture(scope="module")
def trained() -> TwoTasks:
    return train_two_tasks(RECIPE)


def test_both_tasks_are_learnt(trained: TwoTasks) -> None:
    assert min(trained.accuracies) > 0.6
    assert max(train_two_tasks(RECIPE.model_copy(update={"steps": 0})).accuracies) < 0.3
    again = train_two_tasks(RECIPE)
    assert torch.equal(again.network(trained.test_inputs), trained.network(trained.test_inputs))


def test_training_and_test_images_differ(trained: TwoTasks) -> None:
    left = {tuple(row.tolist()) for row in trained.inputs[:, :64]}
    assert not left & {tuple(row.tolist()) for row in trained.test_inputs[:, :64]}


def test_features_that_see_one_half_are_selective(trained: TwoTasks) -> None:
    """The neurons of the first layer are pixels: each belongs to one image, so that a network that keeps its
    tasks apart loses one task only. One whose outputs are all the same mixture is selective for none.
    """
    apart = torch.nn.Sequential(
        torch.nn.Linear(128, 16), torch.nn.ReLU(), torch.nn.Linear(16, 20)
    ).double().requires_grad_(False)  # fmt: skip
    apart[0].weight[:8, 64:] = 0
    apart[0].weight[8:, :64] = 0
    apart[2].weight[:10, 8:] = 0
    apart[2].weight[10:, :8] = 0
    known = type(trained)(
        interbasis.from_torch(apart), trained.inputs, trained.labels, trained.test_inputs, trained.test_labels
    )
    graph = interbasis.build(known.network, known.inputs, basis="neuron", rotate_last=False).graph
    scores = score_two_tasks(known, graph, null_graphs=2)
    assert scores.selectivity >= 1 - 1e-9
    random = interbasis.build(known.network, known.inputs, basis="random", rotate_last=False).graph
    assert score_two_tasks(known, random, null_graphs=2).selectivity < 0.7
