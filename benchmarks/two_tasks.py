"""A network trained on two unrelated tasks at once: two digits side by side, each with its own ten outputs.

An MLP sees one of scikit-learn's digits on the left and another on the right, drawn independently, and has to
name both. Nothing but training keeps the tasks apart: every neuron is connected to both halves and to all
outputs. What a feature or a module does for each task is established by intervening on it.
"""

from dataclasses import dataclass, fields

import numpy as np
import torch
from pydantic import Field
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_digits
from torch import Tensor, nn

from interbasis.analysis.ablation.masked_pass import ablate_nodes
from interbasis.analysis.modules.modules import find_modules
from interbasis.base.records import Measured, Record
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.models.module import from_torch
from interbasis.network.network import Network
from interbasis_studies.known.scores import damage

CLASSES = 10
TASKS = torch.arange(2).repeat_interleave(CLASSES)
"""The task of every output."""


class TwoTaskRecipe(Record):
    """Everything that decides the trained network. Training takes seconds; interrupted, it starts over."""

    seed: int = 0
    hidden: int = Field(32, ge=2)
    steps: int = Field(600, ge=0)
    """0 gives the network at initialisation."""
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    samples: int = 4000
    test_samples: int = 1000


class ByTask(Network):
    """A network whose outputs are the classes of two tasks, one set after the other."""

    def finish(self, f: Tensor, inputs: Tensor) -> Tensor:  # [n, S, width] -> [n, 2, classes]
        return super().finish(f, inputs).unflatten(-1, (2, -1))


@dataclass(frozen=True, eq=False)
class TwoTasks:
    """A network with the inputs it was trained on and others."""

    network: Network
    inputs: Tensor
    labels: Tensor  # [samples, 2]
    test_inputs: Tensor
    test_labels: Tensor
    tasks: Tensor = TASKS
    """The task of every output, 0 or 1."""

    @property
    def accuracies(self) -> tuple[float, float]:
        """Accuracies of both tasks on the test pairs."""
        logits = self.network(self.test_inputs)
        answers = torch.stack([logits[:, self.tasks == task].argmax(-1) for task in (0, 1)], dim=1)
        right = (answers == self.test_labels).double().mean(0)
        return right[0].item(), right[1].item()

    @property
    def by_task(self) -> Network:
        """The network with outputs [samples, 2, classes], so that metrics count the answers to both tasks."""
        return ByTask(**{field.name: getattr(self.network, field.name) for field in fields(self.network)})


class TwoTaskScores(Record):
    """Selectivity of features and modules for one of the tasks; 1 is complete, 0 is to both alike."""

    selectivity: Measured
    """Mean over features of |a − b| / (a + b) for the variances a and b that both tasks lose without the
    feature, weighted by a + b; mean over layers."""
    effects: Measured
    """Cost of ablating a module for its own task, minus that for the other, as on the scoreboard."""
    modules: int
    modularity_z: Measured
    """Standard deviations of the modularity above that of rewired graphs."""


def train_two_tasks(recipe: TwoTaskRecipe | None = None) -> TwoTasks:
    """Train an MLP, 128 → hidden → hidden → 20, on pairs of digits.

    Args:
        recipe: Settings of the training; default: 600 steps of AdamW on batches of 256.

    Returns:
        The network in float64, with training and test pairs made of different images.
    """
    recipe = recipe or TwoTaskRecipe()
    (inputs, labels), (test_inputs, test_labels) = _pairs(recipe)
    torch_state = torch.random.get_rng_state()
    torch.manual_seed(recipe.seed)
    module = nn.Sequential(
        nn.Linear(128, recipe.hidden), nn.ReLU(), nn.Linear(recipe.hidden, recipe.hidden), nn.ReLU(),
        nn.Linear(recipe.hidden, 2 * CLASSES),
    ).double()  # fmt: skip
    torch.random.set_rng_state(torch_state)
    optimizer = torch.optim.AdamW(module.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay)
    generator = torch.Generator().manual_seed(recipe.seed)
    for _ in range(recipe.steps):
        batch = torch.randint(len(inputs), (256,), generator=generator)
        logits = module(inputs[batch]).unflatten(1, (2, CLASSES))
        loss = nn.functional.cross_entropy(logits.mT, labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    network = from_torch(module.eval().requires_grad_(False))
    return TwoTasks(network, inputs, labels, test_inputs, test_labels)


def _pairs(recipe: TwoTaskRecipe) -> list[tuple[Tensor, Tensor]]:
    """(inputs [n, 128], labels [n, 2]) for training and for testing, from different images."""
    images, digits = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images, digits = images.double() / 16, digits.long()
    generator = torch.Generator().manual_seed(recipe.seed)
    order = torch.randperm(len(images), generator=generator)
    parts = order[: len(order) * 3 // 4], order[len(order) * 3 // 4 :]
    pairs = []
    for part, count in zip(parts, (recipe.samples, recipe.test_samples), strict=True):
        which = part[torch.randint(len(part), (count, 2), generator=generator)]
        pairs.append((images[which].flatten(1), digits[which]))
    return pairs


def score_two_tasks(known: TwoTasks, graph: InteractionGraph, null_graphs: int = 10) -> TwoTaskScores:
    """Intervene on every feature and every module, on the test pairs.

    Args:
        known: The network with its pairs.
        graph: Its graph, whose outputs are as they are (``rotate_last=False``).
        null_graphs: Rewired graphs for the modularity.

    Returns:
        Selectivity, effects and modularity.
    """
    modules = find_modules(graph, seeds=0, null_graphs=null_graphs, resolutions=())
    lost = damage(known.network, graph, modules.assignment, known.test_inputs, known.tasks)
    contrast = lost - lost[:, ::-1]
    rows, columns = linear_sum_assignment(-contrast)
    return TwoTaskScores(
        selectivity=float(np.mean([_selectivity(known, graph, k) for k in range(len(graph.layers) - 1)])),
        effects=float(contrast[rows, columns].sum() / 2),
        modules=modules.modules,
        modularity_z=modules.null.z if modules.null else float("nan"),
    )


def _selectivity(known: TwoTasks, graph: InteractionGraph, layer: int) -> float:
    network, inputs, tasks = known.network, known.test_inputs[:300], known.tasks
    untouched = network(inputs)
    spread = untouched.var(0, unbiased=False)
    lost = []
    for feature in range(graph.layers[layer].first_feature, graph.layers[layer].features):
        keep = torch.ones(graph.layers[layer].features, dtype=torch.bool)
        keep[feature] = False
        error = (ablate_nodes(network, graph, inputs, {layer: keep}) - untouched).square().mean(0)
        lost.append([(error[task == tasks].sum() / spread[task == tasks].sum()).item() for task in (0, 1)])
    a, b = np.array(lost).T
    return float(np.abs(a - b).sum() / (a + b).sum())
