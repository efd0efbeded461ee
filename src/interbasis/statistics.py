"""One streaming pass over the data: means, centred Grams, and the cores' sufficient statistics.

All of it is sums that merge, so data may be split over batches, processes and machines. Sums are float64
whatever the network computes in. Grams are centred as they grow (Chan, Golub & LeVeque 1979), so a mean
that is a million times the spread costs no digits.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from interbasis.cores import Sums
from interbasis.data.batches import Batches
from interbasis.errors import InterbasisError
from interbasis.linalg import symmetric_product
from interbasis.network import Network
from interbasis.progress import Progress, silent

CHUNK_BYTES = 2**26
"""What the activations of one chunk of samples may weigh."""


@dataclass
class Covariance:
    """Count, mean and scatter Σ (x − mean)(x − mean)ᵀ of a stream of vectors."""

    count: int
    mean: Tensor  # [w]
    scatter: Tensor  # [w, w], or its diagonal [w] where no more is wanted

    @classmethod
    def of(cls, x: Tensor, full: bool = True) -> "Covariance":  # [n, w]
        mean = x.mean(0, dtype=torch.float64)
        centred = (x - mean).to(x.dtype)
        scatter = symmetric_product(centred) if full else centred.square().sum(0, dtype=torch.float64)
        return cls(len(x), mean, scatter.double())

    def merge(self, other: "Covariance") -> None:
        """Take in another stream: scatters add, plus the scatter of the two means about their common one."""
        total = self.count + other.count
        shift = other.mean - self.mean
        weight = self.count * other.count / total
        self.scatter += other.scatter
        if self.scatter.ndim == 2:
            self.scatter.addr_(shift, shift, alpha=weight)
        else:
            self.scatter += weight * shift.square()
        self.mean += shift * (other.count / total)
        self.count = total

    @property
    def gram(self) -> Tensor:
        """The centred Gram E[(x − mean)(x − mean)ᵀ], [w, w]."""
        return self.scatter / self.count

    @property
    def variances(self) -> Tensor:
        """Its diagonal, [w]."""
        return (self.scatter.diagonal() if self.scatter.ndim == 2 else self.scatter) / self.count


@dataclass
class Statistics:
    """What one pass over the data has collected."""

    samples: int = 0
    layers: list[Covariance] = field(default_factory=list)
    """Per node layer, over samples and positions, the constant left out."""
    cores: list[Sums] = field(default_factory=list)
    """Per section, the sums of its core; empty for cores that need a pass of their own."""

    def merge(self, other: "Statistics") -> None:
        """Take in the statistics of other data."""
        if not self.samples:
            self.samples, self.layers, self.cores = other.samples, other.layers, other.cores
            return
        self.samples += other.samples
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            mine.merge(theirs)
        for sums, more in zip(self.cores, other.cores, strict=True):
            for name, total in sums.items():
                total += more[name]


@torch.no_grad()
def collect(
    network: Network,
    batches: Batches,
    *,
    rotate_last: bool = True,
    grams: bool = True,
    cores: bool = True,
    progress: Progress = silent,
) -> Statistics:
    """Pass once over the data.

    ``rotate_last=False`` leaves out the last layer's Gram (a vocabulary's would be enormous), ``grams=False``
    all of them, ``cores=False`` the cores' statistics.
    """
    result = Statistics()
    for first, inputs in chunks(network, batches):
        result.merge(_of_chunk(network, inputs, first, batches, rotate_last, grams, cores))
        progress("statistics", first + len(inputs), len(batches))
    return result


def _of_chunk(
    network: Network,
    inputs: Tensor,
    first: int,
    batches: Batches,
    rotate_last: bool,
    grams: bool,
    cores: bool,
) -> Statistics:
    last = len(network.sections)
    layers, sums = [], []
    f = network.prefix(inputs)
    for index, node in enumerate(network.nodes):
        x = f[..., 1:] if node.constant else f
        with_gram = grams and (rotate_last or index < last)
        covariance = Covariance.of(x.flatten(0, 1), with_gram)
        if not covariance.mean.isfinite().all():
            bad = first + int((~f.isfinite()).flatten(1).any(1).int().argmax())
            raise InterbasisError(
                f"activations at node layer {node.name!r} are not finite (NaN or infinite), first for sample "
                f"{bad} of the {batches.name}; look at that input or at the model's weights"
            )
        layers.append(covariance)
        if index == last:
            break
        section = network.sections[index]
        if cores and section.core.has_statistics:
            outputs = section.kept(f).shape[1]
            sums.append(
                {k: v.double() for k, v in section.core.statistics(f @ section.read.T, outputs).items()}
            )
        else:
            sums.append({})
        f = section(f)
    return Statistics(len(inputs), layers, sums)


def chunks(network: Network, batches: Batches, multiple_of: int = 1) -> Iterator[tuple[int, Tensor]]:
    """Chunks of samples that fit in memory, on the network's device: (index of the first, inputs)."""
    positions = network.prefix(batches.first().to(network.device)).shape[1]
    widest = sum(
        node.width + len(section.read) for node, section in zip(network.nodes, network.sections, strict=False)
    )
    size = CHUNK_BYTES // (8 * positions * widest)
    size = max(1, size // multiple_of) * multiple_of
    for first, inputs in batches.chunks(size):
        yield first, inputs.to(network.device)
