"""`from_torch` against what the module itself puts out: hooks, replaced forwards, features in dimension 1."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as every_module
from torch.nn.utils import parametrizations, parametrize

from cases import normal
from interbasis import InterbasisError, build, from_torch
from interbasis.network.cores import StatisticsCore
from interbasis.network.section_jacobian import DenseJacobian
from reference import jacobian_gram, relative_error


def plain(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (
        nn.Linear(5, 8),
        nn.ReLU(),
        nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Dropout()),
        nn.Linear(6, 3),
    )
    return nn.Sequential(*layers).to(dtype)


def doubled(module: nn.Module, inputs: Any, output: Any) -> Tensor:
    return 2 * output


def shifted(module: nn.Module, inputs: Any) -> tuple[Any]:
    return (inputs[0] + 0.3,)


WHERE = {
    "whole": lambda m: m,
    "first linear": lambda m: m[0],
    "activation": lambda m: m[1],
    "nested": lambda m: m[2],
    "inner linear": lambda m: m[2][0],
    "dropout": lambda m: m[2][2],
    "last": lambda m: m[3],
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("where", WHERE)
def test_hooks_that_change_outputs_are_refused(where: str, dtype: torch.dtype) -> None:
    for register, hook in (("register_forward_hook", doubled), ("register_forward_pre_hook", shifted)):
        module = plain(dtype)
        getattr(WHERE[where](module), register)(hook)
        with pytest.raises(InterbasisError, match=r"off by .*forward hooks on"):
            from_torch(module)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_hide_no_small_changes(dtype: torch.dtype) -> None:
    module = plain(dtype)
    module[2].register_forward_hook(lambda module, inputs, output: 1.0001 * output)
    with pytest.raises(InterbasisError, match="off by"):
        from_torch(module)


def test_a_hook_that_only_clips_large_values_is_refused() -> None:
    module = plain()
    module[0].register_forward_hook(lambda module, inputs, output: output.clamp(-20, 20))
    assert module(normal(50, 5)).isfinite().all()
    with pytest.raises(InterbasisError, match="off by"):
        from_torch(module)


def test_hooks_that_only_look_are_fine_and_belong_to_the_module_alone() -> None:
    module, seen = plain(), []
    for part in module.modules():
        part.register_forward_hook(lambda module, inputs, output: seen.append(output))
    network = from_torch(module)
    seen.clear()
    inputs = normal(9, 5)
    found = network(inputs)
    assert not seen
    assert relative_error(found, module.eval()(inputs)) <= 1e-12


@pytest.mark.parametrize("where", WHERE)
def test_replaced_forwards_are_refused(where: str) -> None:
    module = plain()
    part = WHERE[where](module)
    own = part.forward
    part.forward = lambda x: own(x) + x.sum(-1, keepdim=True)
    for general in (False, True):
        with pytest.raises(InterbasisError, match=r"forward of .* was replaced"):
            from_torch(module, general=general)


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_first_linear_with_a_forward_of_its_own_is_compared_too() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Doubled(5, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    assert relative_error(from_torch(module)(normal(9, 5)), module(normal(9, 5))) <= 1e-12
    module[2].register_forward_hook(doubled)
    with pytest.raises(InterbasisError, match="off by"):
        from_torch(module)


def test_hooks_on_all_modules_are_refused() -> None:
    register: Any
    for register, hook in (
        (every_module.register_module_forward_hook, doubled),
        (every_module.register_module_forward_pre_hook, shifted),
    ):
        handle = register(hook)
        try:
            with pytest.raises(InterbasisError, match="register_module_forward_hook"):
                from_torch(plain())
        finally:
            handle.remove()


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_old_weight_norm_is_taken_as_long_as_the_weight_is_the_one_it_makes() -> None:
    module = plain()
    nn.utils.weight_norm(module[0])
    inputs = normal(9, 5)
    assert relative_error(from_torch(module)(inputs), module.eval()(inputs)) <= 1e-12
    with torch.no_grad():
        module[0].weight_g.mul_(2)
        stale = module[0].weight
        with pytest.raises(InterbasisError, match=r"off by .*parametrizations\.weight_norm"):
            from_torch(module)
        assert module[0].weight is stale
        module(inputs)
    assert relative_error(from_torch(module)(inputs), module(inputs)) <= 1e-12


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrizations_are_honoured_as_in_evaluation(norm: Callable[..., Any]) -> None:
    module, inputs = plain(), normal(9, 5)
    norm(module[0])
    with torch.no_grad():
        next(module[0].parametrizations.weight.parameters()).mul_(1.7)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    network = from_torch(module)
    assert module.training
    assert parametrize.is_parametrized(module[0])
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert relative_error(network(inputs), module.eval()(inputs)) <= 1e-12


def test_the_module_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.BatchNorm1d(5), *plain(torch.float32))
    module[2].eval()
    modes = [part.training for part in module.modules()]
    parameters = {name: (value, value.clone()) for name, value in module.named_parameters()}
    buffers = {name: (value, value.clone()) for name, value in module.named_buffers()}
    random = torch.get_rng_state()
    from_torch(module)
    assert [part.training for part in module.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    for now, kept in ((module.named_parameters(), parameters), (module.named_buffers(), buffers)):
        for name, value in now:
            assert value is kept[name][0]
            assert torch.equal(value, kept[name][1])


def test_an_example_is_left_as_it_was() -> None:
    module, example = nn.Sequential(nn.ReLU(inplace=True), *plain()), normal(9, 5)
    from_torch(module, example)
    assert torch.equal(example, normal(9, 5))
    module[1].register_forward_hook(lambda module, inputs, output: [output.mul_(2)][1:] or None)
    with pytest.raises(InterbasisError, match="off by"):
        from_torch(module, example[:1])


def doubled_gradients(module: nn.Module, into: Any, out: Any) -> Any:
    return tuple(2 * g for g in into if g is not None)


def test_backward_hooks_change_no_derivative() -> None:
    module, inputs = plain(), normal(20, 5)
    expected = build(from_torch(module), inputs).graph.edges
    for part in module.modules():
        part.register_full_backward_hook(doubled_gradients)
    for mine, theirs in zip(build(from_torch(module), inputs).graph.edges, expected, strict=True):
        assert torch.equal(mine, theirs)


PREFIXES: dict[str, tuple[Callable[[], list[nn.Module]], tuple[int, ...] | None]] = {
    "flattened": (lambda: [nn.Flatten(), nn.Linear(12, 4)], (3, 4)),
    "tokens": (lambda: [nn.Embedding(7, 3), nn.Flatten(), nn.Linear(6, 4)], None),
    "tokens with positions": (lambda: [nn.Embedding(7, 6), nn.Linear(6, 4)], None),
}


@pytest.mark.parametrize("kind", PREFIXES)
def test_inputs_are_made_up_for_what_precedes_the_first_linear(kind: str) -> None:
    """Accepted as it is; refused for a hook on the last layer, found by comparing."""
    layers, shape = PREFIXES[kind]
    torch.manual_seed(0)
    module = nn.Sequential(*layers(), nn.GELU(), nn.Linear(4, 2)).double().eval()
    inputs = normal(5, *shape) if shape else torch.arange(10).view(5, 2) % 7
    assert relative_error(from_torch(module)(inputs), module(inputs)) <= 1e-12
    module[-1].register_forward_hook(doubled)
    with pytest.raises(InterbasisError, match="off by"):
        from_torch(module)
    module[-1]._forward_hooks.clear()
    module[-1].register_forward_hook(lambda module, inputs, output: None)
    assert relative_error(from_torch(module)(inputs), module(inputs)) <= 1e-12


class Columns(nn.Module):
    """Takes a dimension that nothing tells of."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 3:, 0]


def test_where_no_inputs_can_be_made_up_hooks_are_refused_unless_an_example_is_given() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Columns(), nn.Linear(4, 3)).double()
    example = normal(6, 7, 2)
    assert relative_error(from_torch(module)(example), module(example)) <= 1e-12
    looking = module[1].register_forward_hook(lambda module, inputs, output: None)
    with pytest.raises(InterbasisError, match=r"forward hooks on part '1'.*from_torch"):
        from_torch(module)
    assert relative_error(from_torch(module, example)(example), module(example)) <= 1e-12
    looking.remove()
    module[1].register_forward_hook(doubled)
    with pytest.raises(InterbasisError, match="off by"):
        from_torch(module, example)
    with pytest.raises(InterbasisError, match=r"example \[6, 2\].*batch of its inputs"):
        from_torch(nn.Sequential(Columns(), nn.Linear(4, 3)), normal(6, 2))


@pytest.mark.parametrize("last", [nn.Sigmoid(), nn.Softplus(), nn.LogSigmoid(), nn.Tanh(), nn.Softmax(-1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_modules_that_saturate_are_accepted(last: nn.Module, dtype: torch.dtype) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        layers = (
            nn.Linear(5, 4),
            nn.Softplus(),
            nn.Linear(4, 3, bias=False),
            nn.Softplus(),
            nn.Linear(3, 1),
            last,
        )
        from_torch(nn.Sequential(*layers).to(dtype), general=True)


def per_feature(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Batch norms before, between and after activations, and slopes of every feature's own."""
    torch.manual_seed(3)
    module = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(),
        nn.Linear(8, 6), nn.PReLU(6), nn.BatchNorm1d(6, affine=False), nn.Tanh(),
        nn.Linear(6, 7), nn.GELU(), nn.BatchNorm1d(7),
        nn.Linear(7, 3), nn.BatchNorm1d(3),
    )  # fmt: skip
    for part in module:
        for value in (*part.parameters(), *part.buffers()):
            if value.ndim == 1:
                value.data = torch.rand_like(value) + 0.2
    return module.to(dtype).eval()


@pytest.mark.parametrize("general", [False, True])
def test_functions_of_every_feature_are_accepted_in_closed_form(general: bool) -> None:
    module, inputs = per_feature(), normal(30, 5)
    network = from_torch(module, general=general)
    assert relative_error(network(inputs), module(inputs)) <= 1e-12
    for section, f in zip(network.sections, network.activations(inputs), strict=False):
        assert isinstance(section.core, StatisticsCore) or not section.read.numel()
        core: Any = section.core
        u, at = section.read_outs(f), section.outputs(f)
        moments = core.moments(core.statistics(u, at), section.write.T @ section.write)
        gram = DenseJacobian.from_section(section, None).gram(moments, 30, 30)
        expected = jacobian_gram(section, f, torch.eye(section.target.width).double())[1:, 1:]
        assert relative_error(gram.matrix, expected) <= 1e-10
        assert section(torch.zeros(1, 1, section.source.width).double()).abs().max() <= 1e-12


@pytest.mark.parametrize("between", [nn.BatchNorm1d(8), nn.PReLU(8)])
def test_one_batch_norm_or_prelu_with_general(between: nn.Module) -> None:
    torch.manual_seed(1)
    if isinstance(between, nn.BatchNorm1d):
        between.running_mean.normal_()
        between.running_var.uniform_(0.5, 2)
    module = nn.Sequential(nn.Linear(5, 8), between, nn.LayerNorm(8), nn.Linear(8, 3)).double().eval()
    network = from_torch(module, general=True)
    assert relative_error(network(normal(9, 5)), module(normal(9, 5))) <= 1e-12
    with pytest.raises(InterbasisError, match=rf"module '1' is a {type(between).__name__}.*dimension 1"):
        network(normal(9, 8, 5))  # 8 positions: torch would take them for the features


def test_functions_of_every_feature_gain_no_error_in_float64() -> None:
    module, inputs = per_feature(torch.float32), normal(9, 5)
    network = from_torch(module).double()
    assert relative_error(network(inputs), module.double()(inputs)) <= 1e-13


def test_batch_norms_that_do_not_fit_or_mix_samples_are_refused_with_the_reason() -> None:
    mixing = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3))
    for general in (False, True):
        with pytest.raises(InterbasisError, match=r"'1' is a BatchNorm1d without running"):
            from_torch(mixing, general=general)
    with pytest.raises(InterbasisError, match=r"take the 8 values .*'1' \(BatchNorm1d\)"):
        from_torch(nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(7), nn.Linear(8, 3)))
