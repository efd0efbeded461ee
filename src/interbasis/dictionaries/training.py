"""Training of TopK dictionaries in any metric.

For a metric H, activations are taken to y = H^½ (x − μ) / s, with s their root mean square norm, and an
ordinary dictionary of y is trained with Adam on ‖y − ŷ‖²:

    u = E (y − b) + c,    ŷ = Dᵀ z + b,    rows of D at norm 1.

Features that were not active for a while learn what the others leave unexplained (Gao et al. 2024). At the
end everything is folded back: W_e = E H^½ / s and W_d = s D H^-½, with directions that H ignores at their
mean.
Samples are drawn by the number of the step, so training that was interrupted goes on bit for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.compute.checkpoints import Checkpoint, State
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.jacobian_penalty import PointwiseMap, jacobian_penalty
from interbasis.dictionaries.metrics import power
from interbasis.dictionaries.settings import TrainSettings
from interbasis.dictionaries.sparse_codes import SparseCode

IDLE_STEPS = 200
"""Steps without being active after which a feature counts as dead."""
DEAD_WEIGHT = 1 / 32
"""Weight of the loss that revives dead features."""
DECAY_SHARE = 0.3
"""Share of the steps, at the end, over which the learning rate falls to 0."""
LayerEnd = tuple[float, int]
"""Error and number of dead features of a dictionary."""


@dataclass
class Parameters:
    """The parameters of a dictionary of y."""

    encoder: Tensor  # E [K, d]
    encoder_bias: Tensor  # c [K]
    decoder: Tensor  # D [K, d]
    bias: Tensor  # b [d]

    @classmethod
    def random(cls, settings: TrainSettings, width: int) -> "Parameters":
        generator = torch.Generator().manual_seed(settings.seed)
        D = torch.randn(settings.features, width, generator=generator)
        D = D / D.norm(dim=1, keepdim=True)
        return cls(D.clone(), torch.zeros(settings.features), D, torch.zeros(width))

    def tensors(self) -> list[Tensor]:
        return [self.encoder, self.encoder_bias, self.decoder, self.bias]

    def preactivations(self, y: Tensor) -> Tensor:  # [B, d] -> [B, K]
        return torch.addmm(self.encoder_bias, y - self.bias, self.encoder.T)

    def reconstruct(self, z: SparseCode) -> Tensor:  # [B, d]
        return z.times(self.decoder) + self.bias

    def gradients(
        self, y: Tensor, z: SparseCode, difference: Tensor, with_bias: bool = True
    ) -> list[Tensor]:  # as `tensors`
        """Gradients of the mean of ‖r‖² with r = y − Dᵀz − b, or r = constant − Dᵀz without the bias.

        With g = −2r/B: ∂D = zᵀg, ∂u = gDᵀ where z > 0, ∂E = ∂uᵀ(y − b), ∂c = Σ∂u, ∂b = Σg − EᵀΣ∂u.
        """
        g = difference * (-2 / len(y))
        du = z.with_values(torch.where(z.values > 0, z.products(g, self.decoder), 0.0))
        encoder, encoder_bias, bias = self.encoder_gradients(y, du)
        return [encoder, encoder_bias, z.transposed_times(g), bias + g.sum(0) if with_bias else bias]

    def encoder_gradients(self, y: Tensor, du: SparseCode) -> tuple[Tensor, Tensor, Tensor]:
        """∂E [K, d], ∂c [K] and ∂b [d] from ∂u."""
        total = du.sum_over_tokens()
        return du.transposed_times(y - self.bias), total, -total @ self.encoder


def fit(
    activations: Tensor,
    metric: Tensor,
    settings: TrainSettings,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int, float, int], None] = lambda step, loss, dead: None,
) -> Dictionary:
    """Train a dictionary of activations.

    Args:
        activations: x [tokens, d], float32; may be a view of a file.
        metric: H [d, d], float64, as `metric_matrix` makes it.
        settings: Size and course of the training.
        checkpoint: Where unfinished work is stored.
        progress: Called with the step, the loss (1 is the variance) and the number of dead features.

    Returns:
        The dictionary, folded back to the coordinates of x, float32.

    Raises:
        InterbasisError: There are fewer tokens than features, or more features active than there are.
    """
    check_size(len(activations), settings)
    coordinates = _Coordinates.from_activations(activations, metric)
    trainer = _Trainer(activations, coordinates, settings, checkpoint or Checkpoint())
    trainer.run(progress)
    return trainer.dictionary()


def check_size(tokens: int, settings: TrainSettings) -> None:
    """Check that there are enough features and tokens.

    Raises:
        InterbasisError: There are fewer tokens than features, or more features active than there are.
    """
    if settings.active > settings.features:
        raise InterbasisError(
            f"expected at most {settings.features} active features, received {settings.active}"
        )
    if tokens < settings.features:
        raise InterbasisError(
            f"{settings.features} features require at least as many tokens, received {tokens}; use more data"
        )


def fit_pair(
    activations: tuple[Tensor, Tensor],
    metrics: tuple[Tensor, Tensor],
    section: PointwiseMap,
    settings: TrainSettings,
    weight: float,
    *,
    progress: Callable[[int, Sequence[LayerEnd], float], None] = lambda step, ends, penalty: None,
    checkpoint: Checkpoint | None = None,
) -> tuple[Dictionary, Dictionary]:
    """Train dictionaries of two neighbouring layers whose Jacobian is sparse (Farnik et al. 2025).

    Args:
        activations: x and x′ [tokens, d] of both layers at the same tokens, float32.
        metrics: H and H′ of their errors.
        section: The MLP between the streams.
        settings: Size and course of both trainings.
        weight: Weight of the mean |J_ij| beside the sum of both errors.
        progress: Called with the step, the error and dead features of both, and the penalty.
        checkpoint: Where unfinished work is stored.

    Returns:
        Both dictionaries.

    Raises:
        InterbasisError: The tokens are not the same, or too few, or features are not counted per token.
    """
    checkpoint = checkpoint or Checkpoint()
    if len(activations[0]) != len(activations[1]) or settings.kind != "topk":
        raise InterbasisError(
            "a penalty on Jacobians requires topk and the same tokens at both layers, received "
            f"{settings.kind}, {len(activations[0])} and {len(activations[1])} tokens"
        )
    check_size(len(activations[0]), settings)
    trainers = source, target = [
        _Trainer(x, _Coordinates.from_activations(x, metric), settings, _part(checkpoint, k))
        for k, (x, metric) in enumerate(zip(activations, metrics, strict=True))
    ]
    at, to = source.coordinates, target.coordinates
    between = section.to(torch.float64)
    between = between.in_coordinates(at.scale * at.inverse, at.mean, to.root / to.scale).to(torch.float32)
    if checkpoint.done:
        ends = [(trainer.loss, trainer.dead) for trainer in trainers]
        progress(checkpoint.done, ends, checkpoint.values["penalty"])
    for step in range(checkpoint.done, settings.steps):
        first, second = source.begin(step), target.begin(step)  # the same tokens: drawn by seed and step
        p = jacobian_penalty(
            between, first.z, source.parameters.decoder, source.parameters.bias, second.z,
            target.parameters.encoder,
        )  # fmt: skip
        du = first.z.with_values(torch.where(first.z.values > 0, p.values, 0.0))
        encoder, encoder_bias, bias = source.parameters.encoder_gradients(first.y, du)
        more = encoder, encoder_bias, p.decoder, p.bias + bias
        first.gradients = [g + weight * m for g, m in zip(first.gradients, more, strict=True)]
        second.gradients[0] = second.gradients[0] + weight * p.encoder
        ends = [source.finish(first, step), target.finish(second, step)]
        penalty = p.value.item()
        checkpoint.save(step + 1, lambda: _joined(trainers, penalty))  # noqa: B023
        progress(step + 1, ends, penalty)
    return source.dictionary(), target.dictionary()


def _part(checkpoint: Checkpoint, number: int) -> Checkpoint:
    """The unfinished training of one dictionary out of those that `_joined` has put together."""
    part, start = Checkpoint(), f"{number}/"
    part.done, part.values = checkpoint.done, checkpoint.values.get(str(number), {})
    part.tensors = {n.removeprefix(start): t for n, t in checkpoint.tensors.items() if n.startswith(start)}
    return part


def _joined(trainers: "Sequence[_Trainer]", penalty: float) -> State:
    states = [trainer.state() for trainer in trainers]
    tensors = {f"{k}/{name}": t for k, (part, _) in enumerate(states) for name, t in part.items()}
    return tensors, {str(k): values for k, (_, values) in enumerate(states)} | {"penalty": penalty}


@dataclass(frozen=True, eq=False)
class _Coordinates:
    """y = root (x − mean) / scale."""

    mean: Tensor  # [d]
    root: Tensor  # H^½ [d, d]
    inverse: Tensor  # H^-½ [d, d]
    scale: float

    @classmethod
    def from_activations(cls, x: Tensor, metric: Tensor) -> "_Coordinates":
        blocks = x.split(2**16)
        mean = torch.stack([block.double().sum(0) for block in blocks]).sum(0) / len(x)
        root = power(metric.double(), 0.5)
        squares = sum(((block.double() - mean) @ root).square().sum() for block in blocks)
        scale = float((torch.as_tensor(squares) / len(x)).sqrt())
        return cls(mean, root, power(metric.double(), -0.5), scale)

    def __call__(self, x: Tensor) -> Tensor:
        return (x - self.mean.float()) @ (self.root / self.scale).float()


@dataclass
class _StepWork:
    """Gradients of one step, before it is taken."""

    y: Tensor  # [B, d]
    z: SparseCode
    gradients: list[Tensor]
    loss: float
    dead: int


class _Trainer:
    """Adam on the reconstruction error, step by step."""

    def __init__(self, x: Tensor, coordinates: _Coordinates, settings: TrainSettings, checkpoint: Checkpoint):
        self.x, self.coordinates, self.settings, self.checkpoint = x, coordinates, settings, checkpoint
        parameters = Parameters.random(settings, x.shape[1])
        self.idle = torch.zeros(settings.features, dtype=torch.int64)
        self.threshold = torch.zeros(())
        moments = [torch.zeros_like(tensor) for tensor in parameters.tensors() for _ in range(2)]
        if checkpoint.done:
            saved = checkpoint.tensors
            parameters = Parameters(*(saved[f"parameter.{k}"] for k in range(4)))
            moments = [saved[f"moment.{k}"] for k in range(8)]
            self.idle, self.threshold = saved["idle"], saved["threshold"]
        self.parameters, self.moments = parameters, moments
        self.loss, self.dead = checkpoint.values.get("loss", 0.0), checkpoint.values.get("dead", 0)

    def run(self, progress: Callable[[int, float, int], None]) -> None:
        done, steps = self.checkpoint.done, self.settings.steps
        if done:
            progress(done, self.loss, self.dead)
        for step in range(done, steps):
            self.loss, self.dead = self._step(step)
            self.checkpoint.save(step + 1, self.state)
            progress(step + 1, self.loss, self.dead)

    def _step(self, step: int) -> tuple[float, int]:
        return self.finish(self.begin(step), step)

    @torch.no_grad()
    def begin(self, step: int) -> "_StepWork":
        """Draw tokens, and find the gradients of the error."""
        y = self._batch(step)
        u = self.parameters.preactivations(y)
        z, dead = self._code(u), (self.idle > IDLE_STEPS).nonzero()[:, 0]
        difference = y - self.parameters.reconstruct(z)
        gradients = self.parameters.gradients(y, z, difference)
        if len(dead) > self.settings.active:
            revived = SparseCode.largest_among(u, dead, min(2 * self.settings.active, len(dead)))
            unexplained = difference - revived.times(self.parameters.decoder)
            more = self.parameters.gradients(y, revived, unexplained, with_bias=False)
            gradients = [g + DEAD_WEIGHT * m for g, m in zip(gradients, more, strict=True)]
        return _StepWork(y, z, gradients, difference.square().sum(1).mean().item(), len(dead))

    @torch.no_grad()
    def finish(self, work: "_StepWork", step: int) -> tuple[float, int]:
        """Take a step along the gradients."""
        self._adam(work.gradients, step)
        self.idle += 1
        self.idle[work.z.features] = 0
        self.loss, self.dead = work.loss, work.dead
        return work.loss, work.dead

    def _batch(self, step: int) -> Tensor:  # [B, d]
        generator = torch.Generator().manual_seed(self.settings.seed * 2**20 + step)
        rows = torch.randint(len(self.x), (self.settings.batch,), generator=generator)
        return self.coordinates(self.x[rows])

    def _code(self, u: Tensor) -> SparseCode:
        """z from u [B, K]."""
        if self.settings.kind == "topk":
            return SparseCode.largest_per_token(u, self.settings.active)
        z = SparseCode.largest_per_batch(u, self.settings.active)
        decay = 0.99 if self.threshold else 0.0
        self.threshold = decay * self.threshold + (1 - decay) * z.values.min()
        return z

    def _adam(self, gradients: list[Tensor], step: int) -> None:
        steps, b1, b2 = self.settings.steps, 0.9, 0.999
        rate = self.settings.rate * min(1.0, (steps - step) / (DECAY_SHARE * steps))
        for k, (tensor, gradient) in enumerate(zip(self.parameters.tensors(), gradients, strict=True)):
            first, second = self.moments[2 * k : 2 * k + 2]
            first.mul_(b1).add_(gradient, alpha=1 - b1)
            second.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
            size = rate / (1 - b1 ** (step + 1))
            tensor.addcdiv_(first, (second / (1 - b2 ** (step + 1))).sqrt().add_(1e-8), value=-size)
        D = self.parameters.decoder
        D.div_(D.norm(dim=1, keepdim=True).clamp_min(1e-12))

    def state(self) -> State:
        """Everything that the steps that follow depend on."""
        tensors = {f"parameter.{k}": t for k, t in enumerate(self.parameters.tensors())}
        tensors |= {f"moment.{k}": moment for k, moment in enumerate(self.moments)}
        values = {"loss": self.loss, "dead": self.dead}
        return tensors | {"idle": self.idle, "threshold": self.threshold}, values

    def dictionary(self) -> Dictionary:
        """The dictionary in the coordinates of x."""
        E, c, D, b = (tensor.double() for tensor in self.parameters.tensors())
        at = self.coordinates
        encoder = E @ at.root / at.scale
        threshold = None
        if self.settings.kind == "batchtopk":
            threshold = self.threshold.expand(self.settings.features).clone().float()
        return Dictionary(
            encoder=encoder.float(),
            encoder_bias=(c - E @ b - encoder @ at.mean).float(),
            decoder=(at.scale * D @ at.inverse).float(),
            decoder_bias=(at.scale * b @ at.inverse + at.mean).float(),
            threshold=threshold,
            active=self.settings.active if threshold is None else None,
        )
