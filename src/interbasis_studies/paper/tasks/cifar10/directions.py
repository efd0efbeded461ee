"""Claims C4 to C6: does one direction per layer of a CIFAR-10 MLP carry animal against vehicle?

For each model (3072-60-60-10, ReLU) and basis: AUROC of every feature for animal (six classes) against
vehicle (four), variance of the best feature that the attribute explains, and test accuracy after that
feature is set to its mean given the true attribute. The basis, the choice of the feature and its means
come from the training images; AUROC, explained variance and accuracy are measured on the test images.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from interbasis.analysis.features.activations import FeatureReader, collect
from interbasis.analysis.features.interventions import intervene
from interbasis.analysis.features.probes import auroc, best, explained_variance, separation
from interbasis.base.progress import Progress, silent
from interbasis.base.records import Record
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import Network
from interbasis_studies.paper.tasks.classifier import ClassifierResult

ANIMALS = (2, 3, 4, 5, 6, 7)
"""bird, cat, deer, dog, frog, horse; the others are airplane, automobile, ship, truck."""
CHOOSING_IMAGES = 10_000
"""Training images that the features are chosen on; ranks need all values of all features at once."""
RANKED_FEATURES = 4
"""Features of a layer that the paper shows, from the best on."""
MAX_PROBED_FEATURES = 512
"""The first features of a layer that are looked at; only PCA at the input has more."""
GROUPS = tuple(int(label in ANIMALS) for label in range(10))


class Direction(Record):
    """The feature of a layer that carries the attribute best, and the second best."""

    layer: str
    feature: int
    auroc: float
    second_feature: int
    second_auroc: float
    best_features: tuple[int, ...]
    """The features that are best on training images, in that order."""
    best_auroc: tuple[float, ...]
    explained: float
    """The attribute's share of the best feature's variance."""
    accuracy_before: float
    """Accuracy over the ten classes."""
    accuracy_after: float
    """With the best feature set to its training mean given the true attribute."""


class WholeModel(Record):
    """The model's own classifier of the attribute."""

    auroc: float
    """Area under the ROC curve of log P(animal)."""
    attribute_accuracy: float
    accuracy: float
    """Accuracy over the ten classes."""


class Cifar10Result(ClassifierResult):
    """An image classifier in one basis."""

    whole: WholeModel
    directions: dict[str, Direction]
    """By layer."""

    @property
    def last_hidden(self) -> Direction:
        """Direction of the layer for which the paper gives numbers."""
        return self.directions[self.layers[-2]]


@dataclass(frozen=True, eq=False)
class Images:
    """CIFAR-10 as rows of 3,072 numbers in [−1, 1], channel by channel, with labels."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def direction(network: Network, layer: LayerBasis, images: Images, progress: Progress = silent) -> Direction:
    """C4 to C6 of one layer in numbers."""
    layer = replace(
        layer, transform=layer.transform[:MAX_PROBED_FEATURES], inverse=layer.inverse[:, :MAX_PROBED_FEATURES]
    )
    source = FeatureReader(network, layer)
    chosen_on = torch.isin(images.train[1][:CHOOSING_IMAGES], torch.tensor(ANIMALS))
    fitted = separation(auroc(collect(source, images.train[0][:CHOOSING_IMAGES]), chosen_on))
    ranked = [index for index, _ in best(fitted, RANKED_FEATURES)]
    feature, second = ranked[:2]
    values, animal = collect(source, images.test[0]), torch.isin(images.test[1], torch.tensor(ANIMALS))
    area, explained = separation(auroc(values, animal)), explained_variance(values, animal.long())
    changed = intervene(
        network, layer, images.test, feature, groups=GROUPS, mean_data=images.train, progress=progress
    )
    return Direction(
        layer=layer.name,
        feature=feature,
        auroc=area[feature].item(),
        second_feature=second,
        second_auroc=area[second].item(),
        best_features=tuple(ranked),
        best_auroc=tuple(area[ranked].tolist()),
        explained=explained[feature].item(),
        accuracy_before=changed.accuracy[0],
        accuracy_after=changed.accuracy[1],
    )


@torch.no_grad()
def whole_model(network: Network, images: Images) -> WholeModel:
    """The model's own classifier of the attribute."""
    inputs, labels = images.test
    logits = network(inputs)
    animal = torch.tensor(GROUPS, dtype=torch.bool)
    score = logits[:, animal].logsumexp(1) - logits[:, ~animal].logsumexp(1)
    truth = animal[labels]
    return WholeModel(
        auroc=auroc(score[:, None], truth).item(),
        attribute_accuracy=(animal[logits.argmax(1)] == truth).double().mean().item(),
        accuracy=(logits.argmax(1) == labels).double().mean().item(),
    )
