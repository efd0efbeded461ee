"""What builds cost, before they begin."""

import json

import pytest
import torch

import interbasis
from interbasis.analysis.costs import profile
from interbasis.analysis.costs.operations import Operations, Workload
from interbasis.analysis.costs.plan import SHAPES, make_plan, open_shapes
from interbasis.analysis.costs.profile import machine_profile, seconds
from interbasis.analysis.costs.records import PlanRequest
from interbasis.base.errors import InterbasisError
from interbasis.graph.settings import BuildConfig
from interbasis.network.structured_matmul import multiplications
from tiny_models import random_model
from widths import check_command


@pytest.fixture
def quick_profile(tmp_path, monkeypatch):
    monkeypatch.setenv("INTERBASIS_CACHE", str(tmp_path))
    monkeypatch.setattr(profile, "SECONDS", 0.003)


def test_a_profile_is_measured_once(quick_profile, tmp_path, monkeypatch):
    first = machine_profile()
    assert min(first.single, first.double, first.small, first.eigen, first.bytes, first.calls) > 0
    monkeypatch.setattr(profile, "measure", None)
    assert machine_profile() == first
    (file,) = tmp_path.glob("profile-*.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"torch": "another"}))
    with pytest.raises(TypeError):  # it would be measured again
        machine_profile()


def test_seconds_add_up(quick_profile):
    rates = machine_profile()
    assert seconds(rates, Operations(single=rates.single, bytes=2 * rates.bytes)) == pytest.approx(3)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_shapes_tell_what_weights_tell(name):
    """A network without weights has the operations of the same network with weights."""
    from interbasis.models.hf.load import skeleton_network

    model = random_model(name, torch.float32)
    real = interbasis.from_hf(model)
    skeleton, centred = skeleton_network(model.config)
    assert centred == (name == "gpt2")
    config = BuildConfig(dtype="float32", edge_group=4)
    found, wanted = (Workload(n, 64, 8, config, centred).phases() for n in (skeleton, real))
    assert found.keys() == wanted.keys()
    for phase, operations in found.items():
        for kind in ("double", "eigen", "small"):
            assert getattr(operations, kind) == pytest.approx(getattr(wanted[phase], kind)), (phase, kind)


def test_multiplications_are_those_that_are_made():
    full = torch.ones(200, 101)
    assert multiplications(full) == full.numel()
    carried = torch.zeros(200, 201)
    carried[torch.arange(200), torch.arange(1, 201)] = 1
    assert multiplications(carried) == 200
    centred = torch.zeros(200, 201)
    centred[:, 1:] = torch.eye(200) - 1 / 200
    assert multiplications(centred) == 2 * 200
    block = torch.zeros(200, 201)
    block[50:100, 11:31] = 2
    assert multiplications(block) == 50 * 20


def test_operations_grow_as_they_should():
    network, centred = open_shapes("gpt2-small")
    config = BuildConfig(dtype="float32", edge_group="positions", edge_sources=1)

    def flops(tokens, positions, phase):
        return Workload(network, tokens, positions, config, centred).phases()[phase].flops

    assert flops(2 * 10**6, 1024, "statistics") == pytest.approx(
        2 * flops(10**6, 1024, "statistics"), rel=1e-3
    )
    assert flops(10**6, 1024, "bases") == flops(10**7, 1024, "bases")
    assert 1 < flops(10**6, 2048, "Jacobians") / flops(10**6, 1024, "Jacobians") < 2
    one, other = (
        Workload(open_shapes(name)[0], 10**6, 1024, config).phases() for name in ("gpt2-small", "llama-7b")
    )
    assert other["forward"].flops > 30 * one["forward"].flops


@pytest.mark.parametrize("shape", ["gpt2-small", "smollm2-135m"])
def test_sampled_positions_take_less(shape):
    """In proportion, but for what is done with all keys and once; no sample is larger than the sequence."""
    network, centred = open_shapes(shape)

    def flops(**settings):
        config = BuildConfig(dtype="float32", edge_group="positions", edge_sources=1, **settings)
        phases = Workload(network, 10**8, 1024, config, centred).phases()
        return {name: operations.flops for name, operations in phases.items()}

    whole, queries, positions = flops(), flops(jacobian_queries=64), flops(edge_positions=64)
    assert 4 < whole["Jacobians"] / queries["Jacobians"] < 16
    assert 1.5 < whole["edges"] / positions["edges"] < 16
    assert {**queries, "Jacobians": 0} == {**whole, "Jacobians": 0}
    assert {**positions, "edges": 0} == {**whole, "edges": 0}
    assert flops(jacobian_queries=1024, edge_positions=1024) == whole


@pytest.mark.parametrize("shape", ["gpt2-small", "llama-7b"])
def test_plans_of_known_shapes(shape, quick_profile):
    plan = make_plan(shape, PlanRequest(edge_group="positions", edge_sources=1))
    assert set(plan.phases) == {"survey", "statistics", "Jacobians", "bases", "edges"}
    assert plan.seconds > plan.forward.seconds > 0
    assert plan.memory > plan.least_memory > 0
    assert SHAPES[shape]().num_hidden_layers in (12, 32)
    assert plan.gpu_hours["A100"] > plan.gpu_hours["H100"] > 0


def test_plans_have_the_defaults_of_builds(quick_profile):
    """Massive tokens are left out by default, but not where the largest direction is isolated."""
    usual, isolated, everything = (
        make_plan("gpt2-small", PlanRequest(**given)).phases["Jacobians"].flops
        for given in ({}, {"isolate_largest": True}, {"norm_limit": 0.0})
    )
    assert isolated == everything < usual


def test_the_command(cli, quick_profile):
    check_command("plan", "gpt2-small", "--tokens", "1000", "--edge-method", "none")
    ended = cli("plan", "modadd", "--tokens", "1000", "--context", "3", "--json")
    assert json.loads(ended.out)["phases"]["edges"]["seconds"] > 0
    ended = cli("plan", "gpt2-enormous")
    assert ended.code == 2
    assert "expected a shape (gpt2-small" in ended.err


def test_plans_of_single_blocks(tmp_path, quick_profile):
    """Of its sections alone, though data pass through what comes before; other blocks are refused."""
    random_model("llama", torch.float32).save_pretrained(tmp_path / "model")
    name = f"hf:{tmp_path / 'model'}"
    whole, first, second = (
        make_plan(spec, PlanRequest(tokens=1000, context=10))
        for spec in (name, f"{name},blocks=0", f"{name},blocks=1")
    )
    assert open_shapes(f"{name},blocks=1")[0].layers == interbasis.from_hf(tmp_path / "model", 1).layers
    assert first.forward.flops < second.forward.flops < whole.forward.flops
    assert first.phases["edges"].flops == second.phases["edges"].flops < whole.phases["edges"].flops / 2
    assert first.least_memory == second.least_memory
    with pytest.raises(InterbasisError, match="between 0 and 1, received '2'"):
        open_shapes(f"{name},blocks=2")
    with pytest.raises(InterbasisError, match="no option 'block'"):
        open_shapes(f"{name},block=1")


def test_unknown_shapes_are_refused():
    with pytest.raises(InterbasisError, match="expected a shape"):
        open_shapes("nothing")
