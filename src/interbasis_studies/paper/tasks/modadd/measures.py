"""Features of modular addition by their Fourier terms, and whether modules are frequencies."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from sklearn.metrics import adjusted_mutual_info_score

from interbasis.analysis.features.fourier_labels import Monosemanticity, fourier, monosemantic
from interbasis.analysis.features.records import FourierLabel
from interbasis.run.run import Run
from interbasis_studies.paper.tasks.classifier import ClassifierResult, Frequencies

ATTENTION, MLP, UNEMBEDDING = "attn_in.0", "mlp_in.0", "unembed"
"""Layers of the models, and the sections that begin at them."""
MIN_SHARE_OF_FREQUENCY = 0.5
"""A feature has a frequency of its own where its terms of that frequency carry at least this share."""
MIN_PURITY = 0.9
"""A module is a frequency's own if this part of it has that frequency, and this part of those are in it."""
MIN_FEATURES_OF_FREQUENCY = 3
"""Fewer features of a frequency are in one module by chance."""
LABELS_PER_LAYER = 25


class LayerMonosemanticity(Monosemanticity):
    """Share of a layer's features that one Fourier term explains."""

    @property
    def first_shares(self) -> tuple[float, ...]:
        """Shares of the paper's first ten features, the constant among the ten left out."""
        return self.shares[: self.top - 1]


class ModaddResult(ClassifierResult):
    """A transformer for modular addition in one basis; layers by name, the output left out."""

    monosemantic: dict[str, LayerMonosemanticity]
    labels: dict[str, tuple[str, ...]]
    """Fourier labels of the first features."""

    @property
    def monosemantic_features(self) -> int:
        """In all layers, as the paper counts."""
        return sum(count.paper for count in self.monosemantic.values())


def measure(common: ClassifierResult, opened: Run) -> ModaddResult:
    """Labels and monosemanticity of the layers before the output, and the modules' frequencies."""
    network, layers = opened.network.double(), opened.graph.layers[:-1]
    labels = {layer.name: fourier(network, layer, form="paper") for layer in layers}
    counts = {layer.name: monosemantic(labels[layer.name], constant=layer.constant) for layer in layers}
    partitions = []
    for partition in common.partitions:
        known = partition.result and compare_frequencies(labels, partition.result.layers)
        partitions.append(partition.model_copy(update={"frequencies": known}))
    return ModaddResult(
        **dict(common) | {"partitions": tuple(partitions)},
        monosemantic={
            name: LayerMonosemanticity(
                **dict(count) | {"shares": tuple(round(share, 4) for share in count.shares)}
            )
            for name, count in counts.items()
        },
        labels={
            name: tuple(label.text for label in layer[:LABELS_PER_LAYER]) for name, layer in labels.items()
        },
    )


def frequency(label: FourierLabel) -> int | None:
    """The frequency whose terms carry at least half of a feature; none for the constant and for mixtures."""
    shares: dict[int, float] = defaultdict(float)
    for term in label.terms:
        x, y = term.frequencies
        if (x or y) and (x == y or not (x and y)):
            shares[x or y] += term.share
    best = max(shares, key=lambda k: shares[k], default=None)
    return best if best is not None and shares[best] >= MIN_SHARE_OF_FREQUENCY else None


def compare_frequencies(
    labels: Mapping[str, Sequence[FourierLabel]], modules: Mapping[str, Sequence[int]]
) -> Frequencies:
    """Compare a partition of the features with their frequencies; labels and modules by layer."""
    pairs = [
        (k, module)
        for layer, of_layer in labels.items()
        for label, module in zip(of_layer, modules[layer], strict=True)
        if module >= 0 and (k := frequency(label)) is not None
    ]
    per_frequency, per_module = Counter(k for k, _ in pairs), Counter(m for _, m in pairs)
    considered = sorted(k for k, count in per_frequency.items() if count >= MIN_FEATURES_OF_FREQUENCY)
    separated = sorted(
        k for (k, m), count in Counter(pairs).items()
        if k in considered and count >= MIN_PURITY * per_frequency[k] and count >= MIN_PURITY * per_module[m]
    )  # fmt: skip
    agreement = adjusted_mutual_info_score(*zip(*pairs, strict=True)) if pairs else 0.0
    return Frequencies(
        own=tuple(separated), considered=tuple(considered), features=len(pairs), agreement=float(agreement)
    )
