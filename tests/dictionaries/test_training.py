"""Training of dictionaries: planted features, metrics, folding, resuming."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cases import seeded
from interbasis import InterbasisError
from interbasis.compute.checkpoints import Checkpoints
from interbasis.dictionaries.metrics import metric_matrix, power
from interbasis.dictionaries.settings import TrainSettings
from interbasis.dictionaries.sparse_codes import SparseCode, largest
from interbasis.dictionaries.training import Parameters, fit

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
def test_planted_features_are_found(superposition: tuple[Tensor, Tensor], kind: str) -> None:
    x, directions = superposition
    dictionary = fit(x, identity(x), SETTINGS.model_copy(update={"kind": kind}))
    rows = dictionary.decoder / dictionary.decoder.norm(dim=1, keepdim=True)
    assert (directions @ rows.T).max(1).values.mean() > 0.9
    z = dictionary.encode(x[:2000])
    assert 0.7 * ACTIVE < (z != 0).sum(1).double().mean() <= ACTIVE * (1 if kind == "topk" else 1.4)
    error = (x - dictionary.reconstruct(x)).square().sum() / (x - x.mean(0)).square().sum()
    assert error < 0.15


def test_a_metric_is_where_the_error_is_small() -> None:
    x = torch.randn(5000, WIDTH, generator=seeded(2))  # nothing is sparse, so something has to be given up
    covariance = torch.cov(x.T.double())
    gram = torch.diag(torch.logspace(0, -3, WIDTH, dtype=torch.float64))
    errors = {}
    for kind in ("raw", "lib", "root", "both"):
        metric = metric_matrix(kind, gram, covariance)
        dictionary = fit(x, metric, SETTINGS.model_copy(update={"steps": 300}))
        difference = (x - dictionary.reconstruct(x)).double()
        errors[kind] = (difference @ gram * difference).sum().item()
    assert max(errors["lib"], errors["root"], errors["both"]) < 0.8 * errors["raw"], errors


def test_directions_that_a_metric_ignores_stay_at_their_mean(superposition: tuple[Tensor, Tensor]) -> None:
    x, _ = superposition
    gram = torch.diag(torch.tensor([1.0] * 8 + [0.0] * 8, dtype=torch.float64))
    dictionary = fit(x, gram, SETTINGS.model_copy(update={"steps": 50}))
    reconstruction = dictionary.reconstruct(x)
    torch.testing.assert_close(reconstruction[:, 8:], x[:, 8:].mean(0).expand(len(x), 8), atol=1e-4, rtol=0)
    assert reconstruction[:, :8].var() > 0.01


def test_powers_undo_each_other() -> None:
    matrix = torch.randn(6, 6, generator=seeded(1), dtype=torch.float64)
    matrix = matrix @ matrix.T
    torch.testing.assert_close(power(matrix, 0.5) @ power(matrix, 0.5), matrix)
    torch.testing.assert_close(power(matrix, 0.5) @ power(matrix, -0.5), torch.eye(6, dtype=torch.float64))


def test_interrupted_training_goes_on_bit_for_bit(
    superposition: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")
    x, _ = superposition
    settings = SETTINGS.model_copy(update={"steps": 40, "kind": "batchtopk"})
    whole = fit(x, identity(x), settings)

    def stop(step: int, loss: float, dead: int) -> None:
        if step == 23:
            raise KeyboardInterrupt

    checkpoints = Checkpoints(tmp_path, "train", settings.model_dump())
    with pytest.raises(KeyboardInterrupt):
        fit(x, identity(x), settings, checkpoints.checkpoint("dictionary", settings.steps), stop)
    resumed = Checkpoints(tmp_path, "train", settings.model_dump()).checkpoint("dictionary", settings.steps)
    assert resumed.done == 23
    again = fit(x, identity(x), settings, resumed)
    for name in ("encoder", "encoder_bias", "decoder", "decoder_bias", "threshold"):
        assert torch.equal(getattr(again, name), getattr(whole, name)), name


def test_what_cannot_be_trained_is_refused(superposition: tuple[Tensor, Tensor]) -> None:
    x, _ = superposition
    with pytest.raises(InterbasisError, match=r"at most 48 active .* 49"):
        fit(x, identity(x), SETTINGS.model_copy(update={"active": 49}))
    with pytest.raises(InterbasisError, match=r"48 features require .* tokens, received 20"):
        fit(x[:20], identity(x), SETTINGS)


@pytest.mark.parametrize("kind", ["topk", "batchtopk"])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("features", [12, 600])  # products all at once, and one by one
def test_gradients_are_those_of_autograd(with_bias: bool, kind: str, features: int) -> None:
    generator = seeded(3)
    shapes = (features, 5), (features,), (features, 5), (5,)
    tensors = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]
    parameters = Parameters(*tensors)
    y = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    u = parameters.preactivations(y)
    places = u.topk(3, 1).indices if kind == "topk" else u.flatten().topk(90).indices
    chosen = torch.zeros_like(u) if kind == "topk" else torch.zeros_like(u).flatten()
    z = u.relu() * chosen.scatter(-1, places, 1.0).view_as(u)
    target = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    decoded = z @ parameters.decoder
    difference = y - decoded - parameters.bias if with_bias else target - decoded
    expected = torch.autograd.grad(difference.square().sum(1).mean(), tensors)
    with torch.no_grad():
        make = SparseCode.largest_per_token if kind == "topk" else SparseCode.largest_per_batch
        code = make(parameters.preactivations(y), 3)
        assert (parameters.reconstruct(code) - decoded - parameters.bias).abs().max() < 1e-12
        found = parameters.gradients(y, code, difference, with_bias)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine - theirs).abs().max() <= 1e-10 * theirs.abs().max()


@given(rows=st.integers(1, 5), width=st.integers(1, 70), count=st.integers(1, 70), seed=st.integers(0, 2**31))
def test_largest_entries_are_those_of_topk(rows: int, width: int, count: int, seed: int) -> None:
    count = min(count, width)
    u = torch.randn(rows, width, generator=seeded(seed))
    if seed % 2:
        u = u.round()  # entries tie
    flat = largest(u, count)
    assert flat.tolist() == sorted(set(flat.tolist()))
    assert (flat // width).bincount(minlength=rows).tolist() == [count] * rows
    found = u.flatten()[flat].view(rows, count)
    assert torch.equal(found.sort(1, descending=True).values, u.topk(count, 1).values)
