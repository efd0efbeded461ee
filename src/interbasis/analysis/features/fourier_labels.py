"""Fourier labels of modular addition's features: a feature over all p² pairs as a few cosines.

With f' the 2-D discrete Fourier transform of a feature f(x, y) and total = Σ |f'|², k = 0 included, the
shares are

    const                  |f'_00|² / total
    cos(kx)                2 |f'_k0|² / total, cos(ky) alike; written as one term, cos(kx)+cos(ky) with
                           the sum of the shares, where the two differ by less than 0.01
    cos(k_x x ± k_y y)     2 A±² / total                    the sum form
    cos(k_x x)·cos(k_y y)  (A₊ + A₋)² / total               the product form
    sin(k_x x)·sin(k_y y)  (A₊ − A₋)² / total

with A± = |f'_{k_x,±k_y}|. Either form describes the feature completely: its shares add up to 1, and
amplitudes and phases give the feature back. With φ± the phases of f'_{k_x,±k_y}, the product form has the
phases α = (φ₊ + φ₋)/2 on x and β = (φ₊ − φ₋)/2 on y:

    2A₊ cos(k_x x + k_y y + φ₊) + 2A₋ cos(k_x x − k_y y + φ₋)
      = 2(A₊ + A₋) cos(k_x x + α) cos(k_y y + β) − 2(A₊ − A₋) sin(k_x x + α) sin(k_y y + β).

Which form is written is chosen once per feature. `leading` takes the form with the larger leading share:
it is for people. `paper` takes the sum form iff ΣA₊²/ΣA₋² > Σ(A₊+A₋)²/Σ(A₊−A₋)², for comparison with the
paper. At the highest frequency of an even p the two forms coincide, and the sum form is written.
"""

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from interbasis.analysis.features.activations import of
from interbasis.analysis.features.records import FourierTerm, FourierTerms
from interbasis.base.errors import InterbasisError
from interbasis.data.modadd import pairs
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import Network

Form = Literal["leading", "paper"]

BLOCK = 2**23
"""Features are transformed so many values at a time."""
MAX_SHARE_DIFFERENCE = 0.01
"""cos(kx) and cos(ky) are one term where their shares differ by less."""
LABEL_TERMS = 3
"""Terms of a label, at most."""
MIN_LABEL_SHARE = 0.05
"""What a term after the first must have to stand in a label."""


@dataclass(frozen=True)
class Term:
    """One term: Σ amplitude · trigonometric function, with its share of the feature's power."""

    text: str
    share: float
    frequencies: tuple[int, int]
    """(k_x, k_y), 0 where the variable does not occur."""
    phases: tuple[float, ...]
    """Radians: of the sum form's cosine; of x and y in a product, and in cos(kx)+cos(ky)."""
    amplitudes: tuple[float, ...]
    """One, or two for cos(kx)+cos(ky)."""

    def surface(self, p: int) -> Tensor:  # [p, p]
        """The term as a function of x and y."""
        grid = torch.arange(p, dtype=torch.float64)
        x, y = (2 * math.pi / p * k * grid for k in self.frequencies)
        x, y = x[:, None], y[None]
        if "·" in self.text:
            wave = torch.cos if self.text.startswith("cos") else torch.sin
            return self.amplitudes[0] * wave(x + self.phases[0]) * wave(y + self.phases[1])
        if len(self.phases) == 2:
            first = self.amplitudes[0] * torch.cos(x + self.phases[0])
            return first + self.amplitudes[1] * torch.cos(y + self.phases[1])
        return self.amplitudes[0] * torch.cos(x + (-y if "-" in self.text else y) + self.phases[0])


@dataclass(frozen=True)
class FourierLabel:
    """What a feature is made of, the largest share first."""

    terms: tuple[Term, ...]
    form: Literal["sum", "product"]

    @property
    def share(self) -> float:
        """The leading term's."""
        return self.terms[0].share

    def record(self) -> FourierTerms:
        """As it is stored."""
        return FourierTerms(form=self.form, terms=tuple(FourierTerm(**asdict(term)) for term in self.terms))

    @property
    def text(self) -> str:
        """Like "70% cos(7x+7y) + 30% cos(31x+31y)"."""
        rest = [term for term in self.terms[1:LABEL_TERMS] if term.share >= MIN_LABEL_SHARE]
        return " + ".join(f"{100 * term.share:.0f}% {term.text}" for term in [self.terms[0], *rest])


def fourier(
    network: Network, layer: LayerBasis, form: Form = "leading", terms: int = 5
) -> list[FourierLabel]:
    """Labels of all features of a layer of a modular-addition network, over all pairs of numbers.

    A feature of a layer with several positions is summed over them.

    Args:
        network: A modular-addition network.
        layer: The basis of one of its node layers.
        form: Sums or products of cosines, chosen per feature: "leading" takes the form with the larger
            leading share, "paper" what the paper's rule prefers.
        terms: Terms per label, at most.

    Returns:
        One label per feature.
    """
    return label(surfaces(network, layer), form, terms)


def surfaces(network: Network, layer: LayerBasis) -> Tensor:  # [features, p, p]
    """Every feature as a function of x and y, summed over positions."""
    p = network.modulus
    if p is None:
        raise InterbasisError(
            f"Fourier labels are for modular addition, received a network of the family {network.family!r}; "
            "use features.label on surfaces of your own [features, p, p]"
        )
    source = of(network.double(), layer)
    everything = pairs(p).inputs
    values = torch.cat([source(some).sum(1) for some in everything.split(2**12)])
    return values.T.unflatten(1, (p, p))


def label(surfaces: Tensor, form: Form = "leading", terms: int = 5) -> list[FourierLabel]:
    """Labels of functions of two numbers, from one FFT.

    Args:
        surfaces: [features, p, p], x first.
        form: As for `fourier`.
        terms: Terms per label, at most.

    Returns:
        One label per feature.

    Raises:
        InterbasisError: The surfaces have another shape, or the form is unknown.
    """
    if surfaces.ndim != 3 or surfaces.shape[1] != surfaces.shape[2] or surfaces.shape[1] < 2:
        raise InterbasisError(
            f"expected features over all pairs, [features, p, p] with p ≥ 2, received {list(surfaces.shape)}"
        )
    if form not in ("leading", "paper"):
        raise InterbasisError(f"the form of a label is 'leading' or 'paper', not {form!r}")
    if terms < 1:
        raise InterbasisError(f"a label has at least one term, not {terms}")
    block = max(1, BLOCK // surfaces[0].numel())
    return [label for some in surfaces.split(block) for label in _label(Spectrum.of(some), form, terms)]


def _label(spectrum: "Spectrum", form: Form, terms: int) -> list[FourierLabel]:
    in_sums = spectrum.prefers_sums() if form == "paper" else spectrum.leads_in_sums()
    shares = torch.cat([spectrum.single, spectrum.double(in_sums)], dim=1)
    largest = shares.topk(min(terms, shares.shape[1]), dim=1)
    return [
        FourierLabel(
            tuple(
                spectrum.term(feature, slot, bool(sums))
                for place, slot in enumerate(slots)
                if place == 0 or shares[feature, slot] > 0
            ),
            "sum" if sums else "product",
        )
        for feature, (slots, sums) in enumerate(zip(largest.indices.tolist(), in_sums, strict=True))
    ]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The 2-D spectra of all features, and the shares of all terms they may be written in.

    Terms are addressed by slots: const, K of x (or of x and y together), K of y, then K·K of
    cos(k_x x + k_y y) or cos·cos and as many of cos(k_x x − k_y y) or sin·sin.
    """

    p: int
    transform: Tensor  # f' [features, p, p], divided by p²: amplitudes
    total: Tensor  # [features]

    @classmethod
    def of(cls, surfaces: Tensor) -> "Spectrum":
        p = surfaces.shape[1]
        transform = torch.fft.fft2(surfaces.double()) / p**2
        total = transform.abs().square().sum((1, 2))
        return cls(p, transform, total.where(total > 0, torch.ones_like(total)))

    @property
    def K(self) -> int:  # noqa: N802
        """The highest frequency."""
        return self.p // 2

    @cached_property
    def _x(self) -> Tensor:  # [features, K] complex
        return self.transform[:, 1 : self.K + 1, 0]

    @cached_property
    def _y(self) -> Tensor:
        return self.transform[:, 0, 1 : self.K + 1]

    @cached_property
    def plus(self) -> Tensor:  # f'_{k_x, k_y} [features, K, K] complex
        return self.transform[:, 1 : self.K + 1, 1 : self.K + 1]

    @cached_property
    def minus(self) -> Tensor:  # f'_{k_x, −k_y} [features, K, K] complex
        return self.transform[:, 1 : self.K + 1, -self.K :].flip(2)

    @cached_property
    def _times(self) -> Tensor:  # [K]
        """How often a frequency occurs: k and −k are two but for the highest of an even p."""
        k = torch.arange(1, self.K + 1)
        return torch.where(2 * k == self.p, 1.0, 2.0).double()

    @cached_property
    def _both(self) -> Tensor:  # [K, K]
        """Where (k_x, k_y) and (k_x, −k_y) are two different frequencies."""
        generic = self._times == 2
        return generic[:, None] & generic[None]

    @cached_property
    def together(self) -> Tensor:  # [features, K]
        """Where cos(kx) and cos(ky) are written as one term."""
        x, y = self._alone
        return (x - y).abs() < MAX_SHARE_DIFFERENCE

    @cached_property
    def _alone(self) -> tuple[Tensor, Tensor]:  # [features, K] each
        times, total = self._times, self.total[:, None]
        return times * self._x.abs().square() / total, times * self._y.abs().square() / total

    @cached_property
    def single(self) -> Tensor:  # [features, 1 + 2K]
        """Shares of const, of x and of y."""
        x, y = self._alone
        one = self.together
        const = self.transform[:, :1, 0].abs().square() / self.total[:, None]
        return torch.cat([const, torch.where(one, x + y, x), torch.where(one, 0.0, y)], dim=1)

    @cached_property
    def sums(self) -> Tensor:  # [features, 2K²]
        """Shares of cos(k_x x + k_y y), then of cos(k_x x − k_y y)."""
        both, total = self._both, self.total[:, None, None]
        times = torch.maximum(self._times[:, None], self._times)
        plus = times * self.plus.abs().square() / total
        minus = torch.where(both, 2.0, 0.0) * self.minus.abs().square() / total
        return torch.cat([plus.flatten(1), minus.flatten(1)], dim=1)

    @cached_property
    def products(self) -> Tensor:  # [features, 2K²]
        """Shares of cos·cos, then of sin·sin."""
        a, b, total = self.plus.abs(), self.minus.abs(), self.total[:, None, None]
        cosines, sines = (a + b).square() / total, (a - b).square() / total
        both = self._both.flatten()
        forms = torch.cat([cosines.flatten(1), sines.flatten(1)], dim=1)
        return torch.where(both.repeat(2), forms, self.sums)

    def double(self, in_sums: Tensor) -> Tensor:  # [features] bool -> [features, 2K²]
        return torch.where(in_sums[:, None], self.sums, self.products)

    def prefers_sums(self) -> Tensor:  # [features] bool
        """The paper's choice."""
        both = self._both
        a, b = self.plus.abs() * both, self.minus.abs() * both
        plus, minus = a.square().sum((1, 2)), b.square().sum((1, 2))
        cosines, sines = (a + b).square().sum((1, 2)), (a - b).square().sum((1, 2))
        return plus * sines > cosines * minus

    def leads_in_sums(self) -> Tensor:  # [features] bool
        """Whether the largest term of two variables is larger in the sum form."""
        return self.sums.amax(1) >= self.products.amax(1)

    def term(self, feature: int, slot: int, in_sums: bool) -> Term:
        """The term at a slot of one feature's shares."""
        K = self.K
        if slot <= 2 * K:
            return self._single_term(feature, slot)
        slot -= 1 + 2 * K
        second, (row, column) = slot >= K * K, divmod(slot % (K * K), K)
        if in_sums or not self._both[row, column]:
            return self._sum_term(feature, row, column, second)
        return self._product_term(feature, row, column, second)

    def _single_term(self, feature: int, slot: int) -> Term:
        share = self.single[feature, slot].item()
        if slot == 0:
            value = self.transform[feature, 0, 0].real.item()
            return Term("const", share, (0, 0), (0.0,), (value,))
        row = (slot - 1) % self.K
        k, times = row + 1, self._times[row]
        x, y = self._x[feature, row], self._y[feature, row]
        if slot > self.K:
            return Term(f"cos({k}y)", share, (0, k), (_phase(y),), ((times * y.abs()).item(),))
        if not self.together[feature, row]:
            return Term(f"cos({k}x)", share, (k, 0), (_phase(x),), ((times * x.abs()).item(),))
        amplitudes = (times * x.abs()).item(), (times * y.abs()).item()
        return Term(f"cos({k}x)+cos({k}y)", share, (k, k), (_phase(x), _phase(y)), amplitudes)

    def _sum_term(self, feature: int, row: int, column: int, minus: bool) -> Term:
        slot = (self.K * self.K if minus else 0) + row * self.K + column
        value = (self.minus if minus else self.plus)[feature, row, column]
        times = max(self._times[row], self._times[column]).item()
        text = f"cos({row + 1}x{'-' if minus else '+'}{column + 1}y)"
        return Term(
            text, self.sums[feature, slot].item(), (row + 1, column + 1), (_phase(value),),
            (times * value.abs().item(),),
        )  # fmt: skip

    def _product_term(self, feature: int, row: int, column: int, sines: bool) -> Term:
        slot = (self.K * self.K if sines else 0) + row * self.K + column
        plus, minus = self.plus[feature, row, column], self.minus[feature, row, column]
        a, b = plus.abs().item(), minus.abs().item()
        phases = (_phase(plus) + _phase(minus)) / 2, (_phase(plus) - _phase(minus)) / 2
        wave, amplitude = ("sin", -2 * (a - b)) if sines else ("cos", 2 * (a + b))
        text = f"{wave}({row + 1}x)·{wave}({column + 1}y)"
        return Term(
            text, self.products[feature, slot].item(), (row + 1, column + 1), phases, (amplitude,)
        )  # fmt: skip


def _phase(value: Tensor) -> float:
    return value.angle().item()
