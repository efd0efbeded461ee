"""Which modules `from_torch` takes, and how it names those that it does not."""

import pytest
import torch
from torch import Tensor, nn

import interbasis
from cases import normal
from interbasis import InterbasisError
from reference import relative_error


def test_flattened_images_and_what_precedes_the_first_linear() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Sequential(nn.Linear(32, 5), nn.Tanh()),
        nn.Linear(5, 2),
    ).double()
    images = torch.randn(3, 1, 6, 6, dtype=torch.float64)
    network = interbasis.from_torch(module, images)
    assert network.layers == ["0", "3.0", "4", "output"]  # the convolution is a section, too
    assert relative_error(network(images), module(images)) <= 1e-12
    with pytest.raises(InterbasisError, match="example, and none was given"):
        interbasis.from_torch(module)


def test_unsupported_modules_are_named_with_a_way_around() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Softmax(-1)), nn.Linear(4, 2))
    with pytest.raises(InterbasisError, match=r"module '1\.0' is a Softmax.*general=True"):
        interbasis.from_torch(module)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.ReLU()), "traced on an example"),
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(5, 2)), "give 4 values, but 2 takes 5"),
    ],
)
def test_modules_that_make_no_network_are_refused(module: nn.Sequential, message: str) -> None:
    with pytest.raises(InterbasisError, match=message):
        interbasis.from_torch(module)


def test_activations_in_place_are_not_left_in_place() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.ReLU(inplace=True), nn.Linear(3, 4), nn.SiLU(inplace=True), nn.Linear(4, 2)
    ).double()
    plain = nn.Sequential(nn.ReLU(), module[1], nn.SiLU(), module[3])
    inputs = normal(30, 3)
    graphs = [
        interbasis.build(interbasis.from_torch(m), inputs.clone(), edge_method="exact").graph
        for m in (module, plain)
    ]
    for mine, theirs in zip(graphs[0].edges, graphs[1].edges, strict=True):
        assert torch.equal(mine, theirs)
    assert module[2].inplace


def test_tokens_may_be_embedded_before_the_first_linear() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Embedding(7, 3), nn.Flatten(), nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 2)
    ).double()
    tokens = torch.randint(0, 7, (20, 2))
    network = interbasis.from_torch(module)
    assert relative_error(network(tokens), module(tokens)) <= 1e-12
    assert len(interbasis.build(network, tokens).graph.edges) == 2


def test_flattening_between_linears_needs_inputs_without_positions() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Flatten(), nn.Linear(4, 2)).double()
    network = interbasis.from_torch(module)
    assert relative_error(network(normal(5, 3)), module(normal(5, 3))) <= 1e-12
    with pytest.raises(InterbasisError, match="flattens after a linear layer"):
        network(normal(5, 1, 3))


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)  # type: ignore[no-untyped-call]


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Shifted(nn.Identity):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


@pytest.mark.parametrize("inner", [Residual(nn.GELU(), nn.Linear(4, 4)), Doubled(4, 4), Shifted()])
def test_modules_with_a_forward_of_their_own_are_not_taken_for_what_they_inherit(
    inner: Residual | Doubled | Shifted,
) -> None:
    module = nn.Sequential(nn.Linear(3, 4), inner, nn.Linear(4, 2)).double()
    with pytest.raises(InterbasisError, match=f"module '1' is a {type(inner).__name__}"):
        interbasis.from_torch(module)
    assert (
        relative_error(interbasis.from_torch(module, general=True)(normal(5, 3)), module(normal(5, 3)))
        <= 1e-12
    )


@pytest.mark.parametrize("strange", [nn.Softmax(dim=1), nn.Softmax(dim=0), nn.Softmax(dim=2), nn.Flatten(0)])
def test_modules_that_mix_samples_or_positions_are_refused(strange: nn.Module) -> None:
    with pytest.raises(InterbasisError, match="last dimension row by row"):
        interbasis.from_torch(nn.Sequential(nn.Linear(3, 4), strange, nn.Linear(4, 2)), general=True)


def test_general_modules_that_change_the_width_or_see_positions() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.GLU(), nn.LayerNorm(4), nn.Linear(4, 2)).double()
    network = interbasis.from_torch(module, general=True)
    for inputs in (normal(6, 3), normal(6, 4, 3)):
        assert relative_error(network(inputs), module(inputs)) <= 1e-12
    rows, sequences = (
        interbasis.build(network, x, basis="gib").graph for x in (normal(24, 3), normal(24, 3).view(6, 4, 3))
    )
    for mine, theirs in zip(rows.edges, sequences.edges, strict=True):
        assert relative_error(mine, theirs) <= 1e-10


@pytest.mark.parametrize("activation", [nn.Softplus(), nn.LogSigmoid()])
def test_a_float32_model_gains_no_error_in_float64(activation: nn.Module) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), activation, nn.Linear(5, 2))
    network, inputs = interbasis.from_torch(module).double(), normal(9, 3)
    assert relative_error(network(inputs), module.double()(inputs)) <= 1e-14
    assert network.sections[0](torch.zeros(1, 1, 4).double()).abs().max() == 0
    general = nn.Sequential(nn.Linear(3, 5), activation, nn.LayerNorm(5), nn.Linear(5, 2)).float()
    network = interbasis.from_torch(general, general=True).double()
    assert relative_error(network(inputs), general.double()(inputs)) <= 1e-13
