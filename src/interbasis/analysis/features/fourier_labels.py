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

from typing import Literal

import torch
from torch import Tensor

from interbasis.analysis.features.activations import FeatureReader
from interbasis.analysis.features.records import FourierLabel, FourierTerm
from interbasis.base.errors import InterbasisError
from interbasis.data.modadd import pairs
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import Network

Form = Literal["leading", "paper"]

MAX_BLOCK_VALUES = 2**23
"""Values of features that are transformed at once."""
MAX_SHARE_DIFFERENCE = 0.01
"""cos(kx) and cos(ky) are one term where their shares differ by less."""


def fourier(
    network: Network, layer: LayerBasis, form: Form = "leading", terms: int = 5
) -> list[FourierLabel]:
    """Label all features of a layer of a modular-addition network, over all pairs of numbers.

    A feature of a layer with several positions is summed over them.

    Args:
        network: A modular-addition network.
        layer: The basis of one of its node layers.
        form: Sums or products of cosines, chosen per feature: "leading" takes the form with the larger
            leading share, "paper" follows the paper's rule.
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
    reader = FeatureReader(network.double(), layer)
    values = torch.cat([reader(inputs).sum(1) for inputs in pairs(p).inputs.split(2**12)])
    return values.T.unflatten(1, (p, p))


def label(surfaces: Tensor, form: Form = "leading", terms: int = 5) -> list[FourierLabel]:
    """Label functions of two numbers, from one FFT.

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
    blocks = surfaces.split(max(1, MAX_BLOCK_VALUES // surfaces[0].numel()))
    return [label for block in blocks for label in Spectrum(block).labels(form, terms)]


class Spectrum:
    """The 2-D spectra of surfaces [features, p, p], and the shares of all terms they may be written in.

    Terms are addressed by slots: const, K of x (or of x and y together), K of y, then K·K of
    cos(k_x x + k_y y) or cos·cos and as many of cos(k_x x − k_y y) or sin·sin.
    """

    def __init__(self, surfaces: Tensor):
        p = surfaces.shape[1]
        self.K = K = p // 2  # the highest frequency
        self.transform = torch.fft.fft2(surfaces.double()) / p**2  # f' [features, p, p]: amplitudes
        total = self.transform.abs().square().sum((1, 2))
        total = total.where(total > 0, torch.ones_like(total))[:, None]  # [features, 1]
        self.x, self.y = self.transform[:, 1 : K + 1, 0], self.transform[:, 0, 1 : K + 1]  # [features, K]
        self.plus = self.transform[:, 1 : K + 1, 1 : K + 1]  # f'_{k_x, k_y} [features, K, K]
        self.minus = self.transform[:, 1 : K + 1, -K:].flip(2)  # f'_{k_x, −k_y} [features, K, K]
        # k and −k are two frequencies but for the highest of an even p
        self.times = torch.where(2 * torch.arange(1, K + 1) == p, 1.0, 2.0).double()  # [K]
        self.both = (self.times == 2)[:, None] & (self.times == 2)  # [K, K], (k_x, ±k_y) are two
        x, y = (self.times * part.abs().square() / total for part in (self.x, self.y))
        self.together = (x - y).abs() < MAX_SHARE_DIFFERENCE  # [features, K], cos(kx)+cos(ky) is one term
        const = self.transform[:, :1, 0].abs().square() / total
        both_shares = torch.where(self.together, x + y, x), torch.where(self.together, 0.0, y)
        self.single = torch.cat([const, *both_shares], dim=1)  # shares [features, 1 + 2K]
        a, b, total = self.plus.abs(), self.minus.abs(), total[:, None]
        times = torch.maximum(self.times[:, None], self.times)
        sums = times * a.square() / total, torch.where(self.both, 2.0, 0.0) * b.square() / total
        products = (a + b).square() / total, (a - b).square() / total
        self.sums = torch.cat([part.flatten(1) for part in sums], dim=1)  # shares [features, 2K²]
        forms = torch.cat([part.flatten(1) for part in products], dim=1)
        self.products = torch.where(self.both.flatten().repeat(2), forms, self.sums)

    def labels(self, form: Form, terms: int) -> list[FourierLabel]:
        """The largest terms of every feature, in sums or products of cosines."""
        in_sums = self.prefers_sums() if form == "paper" else self.leads_in_sums()
        shares = torch.cat([self.single, torch.where(in_sums[:, None], self.sums, self.products)], dim=1)
        largest = shares.topk(min(terms, shares.shape[1]), dim=1)
        return [
            FourierLabel(
                form="sum" if sums else "product",
                terms=tuple(
                    self.term(feature, slot, sums)
                    for place, slot in enumerate(slots)
                    if place == 0 or shares[feature, slot] > 0
                ),
            )
            for feature, (slots, sums) in enumerate(
                zip(largest.indices.tolist(), in_sums.tolist(), strict=True)
            )
        ]

    def prefers_sums(self) -> Tensor:  # [features] bool
        """Whether the paper's rule takes the sum form."""
        a, b = self.plus.abs() * self.both, self.minus.abs() * self.both
        plus, minus = a.square().sum((1, 2)), b.square().sum((1, 2))
        cosines, sines = (a + b).square().sum((1, 2)), (a - b).square().sum((1, 2))
        return plus * sines > cosines * minus

    def leads_in_sums(self) -> Tensor:  # [features] bool
        """Whether the largest term of two variables is larger in the sum form."""
        return self.sums.amax(1) >= self.products.amax(1)

    def term(self, feature: int, slot: int, in_sums: bool) -> FourierTerm:
        """The term at a slot of one feature's shares."""
        K = self.K
        if slot <= 2 * K:
            return self._single_term(feature, slot)
        slot -= 1 + 2 * K
        second, (row, column) = slot >= K * K, divmod(slot % (K * K), K)
        plus, minus = self.plus[feature, row, column], self.minus[feature, row, column]
        frequencies = row + 1, column + 1
        if in_sums or not self.both[row, column]:
            value = minus if second else plus
            times = max(self.times[row], self.times[column]).item()
            return FourierTerm(
                text=f"cos({row + 1}x{'-' if second else '+'}{column + 1}y)",
                share=self.sums[feature, slot].item(),
                frequencies=frequencies,
                phases=(_phase(value),),
                amplitudes=(times * value.abs().item(),),
            )
        a, b = plus.abs().item(), minus.abs().item()
        wave, amplitude = ("sin", -2 * (a - b)) if second else ("cos", 2 * (a + b))
        return FourierTerm(
            text=f"{wave}({row + 1}x)·{wave}({column + 1}y)",
            share=self.products[feature, slot].item(),
            frequencies=frequencies,
            phases=((_phase(plus) + _phase(minus)) / 2, (_phase(plus) - _phase(minus)) / 2),
            amplitudes=(amplitude,),
        )

    def _single_term(self, feature: int, slot: int) -> FourierTerm:
        """Term of const, of x, of y, or of x and y together."""
        if slot == 0:
            text, frequencies = "const", (0, 0)
            phases: tuple[float, ...] = (0.0,)
            amplitudes: tuple[float, ...] = (self.transform[feature, 0, 0].real.item(),)
        else:
            row = (slot - 1) % self.K
            k, x, y = row + 1, self.x[feature, row], self.y[feature, row]
            if slot > self.K:
                text, frequencies, values = f"cos({k}y)", (0, k), [y]
            elif self.together[feature, row]:
                text, frequencies, values = f"cos({k}x)+cos({k}y)", (k, k), [x, y]
            else:
                text, frequencies, values = f"cos({k}x)", (k, 0), [x]
            phases = tuple(_phase(value) for value in values)
            amplitudes = tuple((self.times[row] * value.abs()).item() for value in values)
        share = self.single[feature, slot].item()
        return FourierTerm(
            text=text, share=share, frequencies=frequencies, phases=phases, amplitudes=amplitudes
        )


def _phase(value: Tensor) -> float:
    return value.angle().item()
