"""Derivatives of traced modules: autograd's where it differentiates the function, else with a warning."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cases import normal
from command_line import Cli
from interbasis import InterbasisError, build, from_torch
from reference import edges as reference_edges
from reference import relative_error


class Mixer(nn.Module):
    """MLP-Mixer: a map over positions, then one over channels, each with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.channels, self.out = nn.Linear(6, 6), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(x.transpose(1, 2)).relu().transpose(1, 2)
        return self.out(x + self.channels(x).tanh())


class Middle(nn.Module):
    """A function of six hidden numbers between two linear layers."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.a, self.b = function, nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.function(self.a(x)))


def top_k(h: Tensor) -> Tensor:
    values, places = h.topk(3, -1)
    return torch.zeros_like(h).scatter(-1, places, values.relu())


def sorted_back(h: Tensor) -> Tensor:
    values, places = h.tanh().sort(-1)
    return torch.zeros_like(h).scatter_add(-1, places, values.square())


def largest_alone(h: Tensor) -> Tensor:
    return h.tanh() * F.one_hot(h.tanh().argmax(-1), 6).to(h)


def gathered(h: Tensor) -> Tensor:
    return h.tanh().gather(-1, h.tanh().argsort(-1))


def chosen(h: Tensor) -> Tensor:
    return torch.where(h.tanh() > 0, h.tanh(), h.tanh().square())


def edits_of_slices(h: Tensor) -> Tensor:
    h = h.clone()
    h[:, :3] = h[:, :3].relu()
    h[:, 3:] = h[:, 3:] + h[:, :3].tanh()
    h[:, 1] = h[:, 5].tanh()
    return 2 * h + 1


def edits_with_constants(h: Tensor) -> Tensor:
    h = h.tanh().clone()
    h[:, 2:4] = 0.5
    h[:, 4:] *= 3
    return h


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "interbasis"]


FUNCTIONS = {f.__name__: f for f in (
    top_k, sorted_back, largest_alone, gathered, chosen, edits_of_slices, edits_with_constants,
)}  # fmt: skip


@pytest.mark.parametrize("name", ["mixer", *FUNCTIONS])
def test_graphs_of_modules_that_autograd_differentiates(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Outputs and Jacobians are the module's, edges those of the definition, and nothing is warned of."""
    torch.manual_seed(0)
    module = (Mixer() if name == "mixer" else Middle(FUNCTIONS[name])).double().eval()
    shape = (6, 5) if name == "mixer" else (6,)
    network = from_torch(module, normal(4, *shape))
    assert not warnings_in(caplog)
    inputs = 2 * normal(7, *shape, seed=1)  # another number of samples than was traced
    assert relative_error(network(inputs), module(inputs)) <= 1e-12
    found, expected = (
        torch.autograd.functional.jacobian(lambda x, f=function: f(x[None])[0], inputs[0])
        for function in (network, module)
    )
    assert relative_error(found, expected) <= 1e-10
    graph, activations = build(network, inputs, dtype="float64").graph, network.activations(inputs)
    for k, section in enumerate(network.sections):
        exact = reference_edges(section, activations[k], *graph.layers[k : k + 2])
        assert relative_error(graph.edges[k], exact) <= 1e-10


def test_edits_in_place_are_those_of_the_module() -> None:
    """Of views, where autograd itself refuses: derivatives of the same forward without edits."""

    class InPlace(Middle):
        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            h[:, :3].relu_()
            h[:, 3:] += x[:, :3]
            h.mul_(2).add_(1)
            return self.b(h)

    torch.manual_seed(0)
    module, inputs = InPlace(torch.relu).double().eval(), normal(7, 6)
    network = from_torch(module, inputs)

    def without_edits(x: Tensor) -> Tensor:
        h = module.a(x)
        return module.b(2 * torch.cat([h[:, :3].relu(), h[:, 3:] + x[:, :3]], -1) + 1)

    assert relative_error(network(inputs), module(inputs)) <= 1e-12
    jacobians = [torch.func.jacrev(lambda x, f=f: f(x[None])[0])(inputs[0]) for f in (network, without_edits)]
    assert relative_error(*jacobians) <= 1e-12
    assert build(network, inputs).graph.edges


def test_operations_without_a_derivative_are_refused_in_one_sentence() -> None:
    module = Middle(lambda h: torch.igamma(h.sigmoid(), torch.ones_like(h)))
    with pytest.raises(InterbasisError, match=r"^igamma .* cannot be differentiated") as refused:
        from_torch(module, normal(4, 6))
    assert "\n" not in str(refused.value)


class Doubled(torch.autograd.Function):
    """ReLU with twice the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Exact(torch.autograd.Function):
    """tanh with its own derivative, written out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.tanh())
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (1 - ctx.saved_tensors[0] ** 2)


class OfTokens(nn.Module):
    def __init__(self, *, detached: bool) -> None:
        super().__init__()
        self.embed, self.a, self.b = nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 9)
        self.detached = detached

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(self.embed(x))
        gate = torch.sigmoid(h)
        return self.b(h * (gate.detach() if self.detached else gate))


def without_gradient(h: Tensor) -> Tensor:
    with torch.no_grad():
        gate = h.sigmoid()
    return h * gate


CUSTOM = {
    "detach": lambda h: h * h.sigmoid().detach(),
    "straight through": lambda h: h + (h.round() - h).detach(),
    "autograd.Function": Doubled.apply,
    "no_grad": without_gradient,
}


@pytest.mark.parametrize("name", CUSTOM)
def test_custom_backward_passes_are_warned_of(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """At load; the derivatives are those of the function."""
    torch.manual_seed(0)
    module = Middle(CUSTOM[name]).double()
    network = from_torch(module, normal(4, 6))
    (message,) = warnings_in(caplog)
    assert "pass of Middle is not" in message
    assert ("test_derivatives.py:" in message) == (name in ("detach", "straight through"))
    x, step = normal(6, seed=3), 1e-6
    found = torch.func.jacrev(lambda x: network(x[None])[0])(x)
    columns = [
        (module((x + step * d)[None]) - module((x - step * d)[None]))[0] / (2 * step) for d in torch.eye(6)
    ]
    expected = torch.stack(columns, 1).detach()
    assert (found - expected).abs().max() <= 1e-7
    surrogate = torch.autograd.functional.jacobian(lambda x: module(x[None])[0], x)
    assert (found - surrogate).abs().max() > 0.01


def test_tokens_and_plain_sequentials_are_warned_of_as_well(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    tokens = torch.arange(12).view(3, 4) % 9
    from_torch(OfTokens(detached=True), tokens)
    assert len(warnings_in(caplog)) == 1
    caplog.clear()
    from_torch(OfTokens(detached=False), tokens)
    assert not warnings_in(caplog)

    class Rounded(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h + (h.round() - h).detach()

    plain = nn.Sequential(nn.Linear(6, 6), Rounded(), nn.Linear(6, 3)).double()
    network = from_torch(plain, general=True)
    assert len(warnings_in(caplog)) == 1
    x = normal(1, 6)
    assert not torch.func.jacrev(network)(x).any()
    assert relative_error(network(x), plain(x)) <= 1e-9


@pytest.mark.parametrize(
    "function",
    [
        torch.relu,
        torch.round,
        top_k,
        Exact.apply,
        lambda h: h.tanh().float().double(),
        lambda h: F.relu(0 * h),
    ],
    ids=["relu", "round", "top k", "right backward", "float32", "at a kink"],
)
def test_right_backward_passes_are_not_warned_of(
    function: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    for example in (normal(4, 6), torch.zeros(4, 6)):
        from_torch(Middle(function), example)
    assert not warnings_in(caplog)


def test_the_command_prints_the_warning(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rounding.py").write_text(
        "import torch\nfrom torch import nn\n\n\n"
        "class Rounding(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.a = nn.Linear(3, 3)\n\n"
        "    def forward(self, x):\n        h = self.a(x)\n"
        "        return h.tanh() + (h.round() - h).detach()\n\n\n"
        "def make():\n    return Rounding(), torch.randn(4, 3)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shown = cli("show", "python:rounding:make")
    assert shown.code == 0
    assert "the backward pass of Rounding" in " ".join(shown.err.split())
