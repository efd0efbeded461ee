"""Training of dictionaries: planted features, metrics, folding, resuming."""

import pytest
import torch
from torch import Tensor

from cases import seeded
from interbasis import InterbasisError
from interbasis.compute.checkpoints import Checkpoints
from interbasis.dictionaries.metrics import metric_matrix, power
from interbasis.dictionaries.training import Parameters, TrainSettings, train

WIDTH, PLANTED, ACTIVE = 16, 32, 2


@pytest.fixture(scope="module")
def superposition() -> tuple[Tensor, Tensor]:
    """Activations [tokens, 16] made of 2 of 32 directions each, and the directions."""
    generator = seeded(0)
    directions = torch.randn(PLANTED, WIDTH, generator=generator)
    directions /= directions.norm(dim=1, keepdim=True)
    chosen = torch.rand(20_000, PLANTED, generator=generator).topk(ACTIVE, 1).indices
    sizes = 0.5 + torch.rand(20_000, ACTIVE, generator=generator)
    z = torch.zeros(20_000, PLANTED).scatter(1, chosen, sizes)
    return z @ directions, directions


def identity(x: Tensor) -> Tensor:
    return metric_matrix("raw", torch.eye(x.shape[1]).double(), torch.cov(x.T.double()))


SETTINGS = TrainSettings(features=48, active=ACTIVE, steps=600, batch=512, rate=5e-3)


@pytest.mark.parametrize("kind", ["topk", "batchtopk"])
def test_planted_features_are_found(superposition, kind):
    x, directions = superposition
    dictionary = train(x, identity(x), SETTINGS.model_copy(update={"kind": kind}))
    rows = dictionary.decoder / dictionary.decoder.norm(dim=1, keepdim=True)
    assert (directions @ rows.T).max(1).values.mean() > 0.9
    z = dictionary.encode(x[:2000])
    assert 0.7 * ACTIVE < (z != 0).sum(1).double().mean() <= ACTIVE * (1 if kind == "topk" else 1.4)
    error = (x - dictionary.reconstruct(x)).square().sum() / (x - x.mean(0)).square().sum()
    assert error < 0.15


def test_a_metric_is_where_the_error_is_small():
    x = torch.randn(5000, WIDTH, generator=seeded(2))  # nothing is sparse, so something has to be given up
    covariance = torch.cov(x.T.double())
    gram = torch.diag(torch.logspace(0, -3, WIDTH, dtype=torch.float64))
    errors = {}
    for kind in ("raw", "lib", "root", "both"):
        metric = metric_matrix(kind, gram, covariance)
        dictionary = train(x, metric, SETTINGS.model_copy(update={"steps": 300}))
        difference = (x - dictionary.reconstruct(x)).double()
        errors[kind] = (difference @ gram * difference).sum().item()
    assert max(errors["lib"], errors["root"], errors["both"]) < 0.8 * errors["raw"], errors


def test_directions_that_a_metric_ignores_stay_at_their_mean(superposition):
    x, _ = superposition
    gram = torch.diag(torch.tensor([1.0] * 8 + [0.0] * 8, dtype=torch.float64))
    dictionary = train(x, gram, SETTINGS.model_copy(update={"steps": 50}))
    reconstruction = dictionary.reconstruct(x)
    torch.testing.assert_close(reconstruction[:, 8:], x[:, 8:].mean(0).expand(len(x), 8), atol=1e-4, rtol=0)
    assert reconstruction[:, :8].var() > 0.01


def test_powers_undo_each_other():
    matrix = torch.randn(6, 6, generator=seeded(1), dtype=torch.float64)
    matrix = matrix @ matrix.T
    torch.testing.assert_close(power(matrix, 0.5) @ power(matrix, 0.5), matrix)
    torch.testing.assert_close(power(matrix, 0.5) @ power(matrix, -0.5), torch.eye(6, dtype=torch.float64))


def test_interrupted_training_goes_on_bit_for_bit(superposition, tmp_path, monkeypatch):
    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")
    x, _ = superposition
    settings = SETTINGS.model_copy(update={"steps": 40, "kind": "batchtopk"})
    whole = train(x, identity(x), settings)

    def stop(step: int, loss: float, dead: int) -> None:
        if step == 23:
            raise KeyboardInterrupt

    checkpoints = Checkpoints(tmp_path, "train", settings.model_dump())
    with pytest.raises(KeyboardInterrupt):
        train(x, identity(x), settings, checkpoints.checkpoint("dictionary", settings.steps), stop)
    resumed = Checkpoints(tmp_path, "train", settings.model_dump()).checkpoint("dictionary", settings.steps)
    assert resumed.done == 23
    again = train(x, identity(x), settings, resumed)
    for name in ("encoder", "encoder_bias", "decoder", "decoder_bias", "threshold"):
        assert torch.equal(getattr(again, name), getattr(whole, name)), name


def test_what_cannot_be_trained_is_refused(superposition):
    x, _ = superposition
    with pytest.raises(InterbasisError, match="expected at most 48 active features, received 49"):
        train(x, identity(x), SETTINGS.model_copy(update={"active": 49}))
    with pytest.raises(InterbasisError, match="48 features require at least as many tokens, received 20"):
        train(x[:20], identity(x), SETTINGS)


@pytest.mark.parametrize("with_bias", [True, False])
def test_gradients_are_those_of_autograd(with_bias):
    generator = seeded(3)
    shapes = (12, 5), (12,), (12, 5), (5,)
    tensors = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]
    parameters = Parameters(*tensors)
    y = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    u = parameters.preactivations(y)
    chosen = torch.zeros_like(u).scatter(1, u.topk(3, 1).indices, 1.0)
    z = u.relu() * chosen
    target = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    difference = y - parameters.reconstruct(z) if with_bias else target - z @ parameters.decoder
    expected = torch.autograd.grad(difference.square().sum(1).mean(), tensors)
    with torch.no_grad():
        found = parameters.gradients(y, z, difference, with_bias)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine - theirs).abs().max() <= 1e-10 * theirs.abs().max()
