"""Training of TopK dictionaries in any metric.

For a metric H, activations are taken to y = H^½ (x − μ) / s, with s their root mean square norm, and an
ordinary dictionary of y is trained with Adam on ‖y − ŷ‖²:

    u = E (y − b) + c,    ŷ = Dᵀ z + b,    rows of D at norm 1.

Features that were not active for a while learn what the others leave unexplained (Gao et al. 2024). At the
end everything is folded back: W_e = E H^½ / s and W_d = s D H^-½, with directions that H ignores at their
mean.
Samples are drawn by the number of the step, so training that was interrupted goes on bit for bit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.compute.checkpoints import Checkpoint, State
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.metrics import power
from interbasis.dictionaries.settings import TrainSettings
from interbasis.dictionaries.sparse_codes import SparseCode

IDLE_STEPS = 200
"""Steps without being active after which a feature counts as dead."""
DEAD_WEIGHT = 1 / 32
"""Weight of the loss that revives dead features."""
DECAY_SHARE = 0.3
"""Share of the steps, at the end, over which the learning rate falls to 0."""


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
        total = du.sum_over_tokens()
        bias = -total @ self.encoder
        return [
            du.transposed_times(y - self.bias), total, z.transposed_times(g),
            bias + g.sum(0) if with_bias else bias,
        ]  # fmt: skip


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
    tokens = len(activations)
    if settings.active > settings.features:
        raise InterbasisError(
            f"expected at most {settings.features} active features, received {settings.active}"
        )
    if tokens < settings.features:
        raise InterbasisError(
            f"{settings.features} features require at least as many tokens, received {tokens}; use more data"
        )
    coordinates = _Coordinates.from_activations(activations, metric)
    trainer = _Trainer(activations, coordinates, settings, checkpoint or Checkpoint())
    trainer.run(progress)
    return trainer.dictionary()


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
            self.checkpoint.save(step + 1, self._state)
            progress(step + 1, self.loss, self.dead)

    @torch.no_grad()
    def _step(self, step: int) -> tuple[float, int]:
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
        self._adam(gradients, step)
        self.idle += 1
        self.idle[z.features] = 0
        return difference.square().sum(1).mean().item(), len(dead)

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

    def _state(self) -> State:
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
