"""Modules that nobody foresaw: each gives a network that is right, or one clear sentence."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cases import normal
from interbasis import InterbasisError, build, from_torch
from interbasis.analysis.ablation.masked_pass import ablate_edges
from reference import relative_error


class Written(nn.Module):
    """A forward as a function of the module, with the layers it needs."""

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name)

    def __init__(
        self, forward: Callable[["Written", Tensor], Tensor], **layers: nn.Module | nn.Parameter
    ) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.written = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.written(self, x)


def linear(i: int, o: int) -> nn.Linear:
    return nn.Linear(i, o)


def shared(m: Written, x: Tensor) -> Tensor:
    return m.out(F.relu(m.a(F.relu(m.a(x)))))


def shape_branch(m: Written, x: Tensor) -> Tensor:
    return m.a(x).relu() if x.shape[1] == 6 else x


def in_place_on_the_input(m: Written, x: Tensor) -> Tensor:
    x += 1
    x.mul_(0.5)
    return m.out(m.a(x).relu_())


def input_used_after_in_place(m: Written, x: Tensor) -> Tensor:
    h = m.a(x)
    g = h.relu_()
    return m.out(g + h)


def early_stop(m: Written, x: Tensor) -> Tensor:
    for layer in (m.a, m.b):
        x = torch.tanh(layer(x))
        if x.ndim == 2:
            continue
    return m.out(x)


def residual_of_the_input(m: Written, x: Tensor) -> Tensor:
    return m.out(x + torch.sigmoid(m.a(x)))


def two_streams(m: Written, x: Tensor) -> Tensor:
    left, right = x.split(3, dim=1)
    return m.out(torch.cat([F.gelu(m.l(left)), F.silu(m.r(right))], dim=-1))


def gate(m: Written, x: Tensor) -> Tensor:
    return m.out(m.a(x) * torch.sigmoid(m.b(x)))


def norm_by_hand(m: Written, x: Tensor) -> Tensor:
    h = m.a(x)
    h = (h - h.mean(-1, keepdim=True)) / torch.sqrt(h.var(-1, keepdim=True, unbiased=False) + 1e-5)
    return m.out(h)


def softmax_of_features(m: Written, x: Tensor) -> Tensor:
    return m.out(F.softmax(m.a(x), dim=-1))


def maxout(m: Written, x: Tensor) -> Tensor:
    return m.out(torch.maximum(m.a(x), m.b(x)))


def polynomial(m: Written, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.out(h**3 - 2 * h**2 + h)


def einsum(m: Written, x: Tensor) -> Tensor:
    return torch.einsum("nd,od->no", torch.tanh(m.a(x)), m.w)


def scaled_by_length(m: Written, x: Tensor) -> Tensor:
    return m.out(F.relu(m.a(x)) / x.shape[1] ** 0.5)


def slices(m: Written, x: Tensor) -> Tensor:
    return m.out(F.relu(m.a(x)))[:, 1:]


def one_number(m: Written, x: Tensor) -> Tensor:
    return m.out(F.relu(m.a(x)))[:, :1]


def lstm(m: Written, x: Tensor) -> Tensor:
    return m.out(m.lstm(x)[0][:, -1])


def length_in_python(m: Written, x: Tensor) -> Tensor:
    return m.out(torch.tanh(m.a(x.reshape(len(x), -1))))


def transposed_batch(m: Written, x: Tensor) -> Tensor:
    return m.out(F.relu(m.a(x.transpose(0, 1))).transpose(0, 1))


def mixer(m: Written, x: Tensor) -> Tensor:
    return m.out(F.gelu(m.t(x.transpose(1, 2))).transpose(1, 2))


def rounded(m: Written, x: Tensor) -> Tensor:
    return m.out(torch.relu(m.a(x))).float()


def layers(**more: nn.Module) -> dict[str, nn.Module]:
    return {"a": linear(6, 6), "b": linear(6, 6), "out": linear(6, 3)} | more


RIGHT: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "shared weights": lambda: (Written(shared, **layers()), normal(4, 6)),
    "branch on a shape": lambda: (Written(shape_branch, **layers()), normal(4, 6)),
    "in place on the input": lambda: (Written(in_place_on_the_input, **layers()), normal(4, 6)),
    "used after in place": lambda: (Written(input_used_after_in_place, **layers()), normal(4, 6)),
    "loop": lambda: (Written(early_stop, **layers()), normal(4, 6)),
    "residual of the input": lambda: (Written(residual_of_the_input, **layers()), normal(4, 6)),
    "two streams": lambda: (
        Written(two_streams, l=linear(3, 4), r=linear(3, 2), out=linear(6, 2)),
        normal(4, 6),
    ),
    "gate": lambda: (Written(gate, **layers()), normal(4, 6)),
    "norm by hand": lambda: (Written(norm_by_hand, **layers()), normal(4, 6)),
    "softmax of features": lambda: (Written(softmax_of_features, **layers()), normal(4, 6)),
    "maxout": lambda: (Written(maxout, **layers()), normal(4, 6)),
    "polynomial": lambda: (Written(polynomial, **layers()), normal(4, 6)),
    "einsum": lambda: (Written(einsum, w=nn.Parameter(torch.randn(3, 6)), **layers()), normal(4, 6)),
    "scaled by a shape": lambda: (Written(scaled_by_length, **layers()), normal(4, 6)),
    "sliced output": lambda: (Written(slices, **layers()), normal(4, 6)),
    "one number": lambda: (Written(one_number, **layers()), normal(4, 6)),
    "LSTM": lambda: (Written(lstm, lstm=nn.LSTM(4, 6, batch_first=True), out=linear(6, 2)), normal(3, 4, 4)),
    "len(x)": lambda: (Written(length_in_python, **layers()), normal(4, 2, 3)),
    "transposed batch": lambda: (Written(transposed_batch, **layers()), normal(3, 4, 6)),
    "positions mixed": lambda: (Written(mixer, t=linear(4, 4), out=linear(6, 2)), normal(3, 4, 6)),
    "float16": lambda: (Written(shared, **layers()).half(), normal(4, 6)),
    "training mode": lambda: (
        nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.ReLU()).train(),
        normal(4, 2, 6),
    ),
    "rounds to float32": lambda: (Written(rounded, **layers()), normal(4, 6)),
    "group norm": lambda: (
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU()),
        normal(2, 2, 5, 5),
    ),
}


SLOW = {
    "loop", "softmax of features", "polynomial", "einsum", "scaled by a shape", "one number", "group norm",
    "branch on a shape", "residual of the input", "rounds to float32", "time first", "no layers",
    "data in numbers",
}  # fmt: skip
"""Run by make slow: other tests have what they are about."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in RIGHT]
)
def test_right_networks(name: str) -> None:
    torch.manual_seed(0)
    module, example = RIGHT[name]()
    modes = [part.training for part in module.modules()]
    network = from_torch(module, example)
    assert [part.training for part in module.modules()] == modes
    again = example[:2].flip(0) * 0.7  # other numbers and another number of samples
    expected = module.double().eval()(again.clone())
    assert relative_error(network(again), expected.double()) <= (1e-6 if "float32" in name else 1e-9)


def data_branch(m: Written, x: Tensor) -> Tensor:
    return m.a(x) if x.sum() > 0 else m.b(x)


def data_in_numbers(m: Written, x: Tensor) -> Tensor:
    return m.a(x) * x.max().item()


def random_numbers(m: Written, x: Tensor) -> Tensor:
    return m.a(x) + torch.randn_like(x)


def forgotten_training_flag(m: Written, x: Tensor) -> Tensor:
    return m.out(F.dropout(torch.relu(m.a(x))))


def mixes_samples(m: Written, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.out(torch.tanh(h - h.mean(0)))


def two_results(m: Written, x: Tensor) -> Tensor:
    return m.a(x), m.b(x)  # type: ignore[return-value]


def two_inputs(m: Written, x: Tensor) -> Tensor:
    return m.a(x[0]) + m.b(x[1])


def nothing(m: Written, x: Tensor) -> Tensor:
    return x.flatten(1)


def logarithm(m: Written, x: Tensor) -> Tensor:
    return m.out(torch.log(m.a(x).exp()))


def padding_mask(m: Written, x: Tensor) -> Tensor:
    h = m.e(x)[:, None]
    return F.scaled_dot_product_attention(h, h, h, attn_mask=(x != 0)[:, None, None])[:, 0]


REFUSED: dict[str, tuple[Callable[[], tuple[nn.Module, Any]], str]] = {
    "data branch": (
        lambda: (Written(data_branch, **layers()), normal(4, 6)),
        r"test_odd_modules\.py:\d+: return m\.a",
    ),
    "data in numbers": (
        lambda: (Written(data_in_numbers, **layers()), normal(4, 6)),
        r"test_odd_modules\.py:\d+",
    ),
    "random numbers": (
        lambda: (Written(random_numbers, **layers()), normal(4, 6)),
        "random numbers are drawn",
    ),
    "dropout(x)": (
        lambda: (Written(forgotten_training_flag, **layers()), normal(4, 6)),
        r"test_odd_modules\.py:\d+",
    ),
    "mixed samples": (lambda: (Written(mixes_samples, **layers()), normal(4, 6)), "mixes the samples"),
    "two results": (
        lambda: (Written(two_results, **layers()), normal(4, 6)),
        r"returns 2 tensors \(0, 1\), and a network has one; choose it with .* output=0",
    ),
    "two inputs": (lambda: (Written(two_inputs, **layers()), (normal(4, 6), normal(4, 6))), "one tensor"),
    "no layers": (lambda: (Written(nothing), normal(4, 2, 3)), "has no layer"),
    "not finite at 0": (lambda: (Written(logarithm, **layers()), normal(4, 6)), "not finite at 0"),
    "mask from the input": (
        lambda: (Written(padding_mask, e=nn.Embedding(5, 4)), torch.tensor([[1, 2, 0], [3, 1, 2]])),
        "mask depends on the input",
    ),
    "no example": (lambda: (Written(shared, **layers()), None), "none was given"),
    "time first": (
        lambda: (nn.TransformerEncoderLayer(6, 2, 8, batch_first=False), normal(4, 3, 6)),
        "batch_first=True",
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in REFUSED]
)
def test_refusals_are_one_sentence(name: str) -> None:
    made, expected = REFUSED[name]
    torch.manual_seed(0)
    module, example = made()
    with pytest.raises(InterbasisError, match=expected) as refused:
        from_torch(module, example)
    assert "\n" not in str(refused.value)


def several_results(m: Written, x: Tensor) -> Tensor:
    h = torch.relu(m.a(x))
    return {"logits": m.out(h), "parts": (h, None)}  # type: ignore[return-value]


def test_one_of_several_outputs() -> None:
    torch.manual_seed(0)
    module, example = Written(several_results, **layers()).double(), normal(4, 6)
    expected = module(example)
    assert relative_error(from_torch(module, example, output="logits")(example), expected["logits"]) <= 1e-12
    network = from_torch(module, example, output="parts.0")
    assert relative_error(network(example), expected["parts"][0]) <= 1e-12
    with pytest.raises(InterbasisError, match=r"no tensor 'logit'; .* logits, parts\.0"):
        from_torch(module, example, output="logit")


def test_ablated_outputs_are_arranged_as_the_modules_are() -> None:
    torch.manual_seed(0)
    module, images = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh()).double(), normal(5, 2, 5, 4)
    network = from_torch(module, images)
    graph = build(network, images, dtype="float64").graph
    every = [torch.ones(edges.shape, dtype=torch.bool) for edges in graph.edges]
    assert relative_error(ablate_edges(network, graph, images, every), module(images)) <= 1e-9
