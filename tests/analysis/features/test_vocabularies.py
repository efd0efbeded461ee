"""Logits as features: vocabularies too wide for a dense identity, and logits behind a soft cap."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import interbasis
from command_line import Cli
from interbasis import features
from interbasis.analysis.features.effects import direct_path
from interbasis.analysis.stages.features import FeaturesResult
from interbasis.analysis.stored_results import load_result
from interbasis.graph.layer_basis import MAX_DENSE_IDENTITY, LayerBasis
from interbasis.graph.store import load
from reference import relative_error

transformers = pytest.importorskip("transformers")
from tiny_models import configs, random_model, tokens  # noqa: E402

VOCABULARY = 9000


def saved(model: Any, folder: Path, vocabulary: int) -> tuple[str, str]:
    """A model and some tokens on disk, as the commands are told of them."""
    model.save_pretrained(folder / "model")
    stream = tokens(6, 8, vocabulary).numpy().astype(np.uint16)
    stream.tofile(folder / "tokens.uint16")
    return f"hf:{folder / 'model'}", f"tokens:{folder / 'tokens.uint16'},context=8"


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Path:
    """Two runs of a GPT-2 with 9,000 tokens whose last node layer is the logits."""
    folder = tmp_path_factory.mktemp("wide")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=8, n_layer=1, n_head=2, n_positions=8)
    model, data = saved(transformers.GPT2LMHeadModel(config).eval(), folder, VOCABULARY)
    for basis in ("lib", "pca"):
        settings = ["--data", data, "--basis", basis, "--out", folder / basis]
        assert cli("build", f"{model},output=yes", *settings).code == 0
    return folder


def test_commands_of_a_wide_vocabulary(wide: Path, cli: Cli) -> None:
    assert VOCABULARY > MAX_DENSE_IDENTITY
    compared = cli("compare", wide / "lib", wide / "pca", "--json").json["layers"]["output"]
    assert [row["features"] for row in compared["summaries"]] == [VOCABULARY, VOCABULARY]
    assert (compared["match"]["mean"], compared["match"]["shared"]) == (1, VOCABULARY)
    assert cli("features", wide / "lib", "--top", 3).code == 0
    *_, before, last = load_result(wide / "lib", FeaturesResult).layers.values()
    assert list(last.by_index()) == [0, 1, 2]
    assert last.features[0].effects is None  # a logit would push itself
    assert len(before.features[0].effects.up) == 5


def test_features_of_a_wide_vocabulary(wide: Path) -> None:
    graph = load(wide / "lib")
    network = interbasis.from_hf(wide / "model", output=True)
    layer, inputs = graph.layers[-1], tokens(6, 8, VOCABULARY)
    logits = network(inputs)
    source = features.FeatureReader(network, layer)
    plan = features.ExamplePlan(ends=2, bands=1, per_band=1, reservoir=4)
    chosen = [7, VOCABULARY - 1]
    shown = features.examples(source, inputs, plan, features=chosen).features
    for row, j in zip(shown, chosen, strict=True):
        most = row.bands[0].examples[0].value
        assert most == pytest.approx(logits[..., j].max().item(), rel=1e-3)
    labels = inputs.roll(-1, 1)
    before = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    logits[..., 7] = 9.0
    after = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    found = features.intervene(network, layer, (inputs, labels), 7, 9.0)
    assert found.loss == pytest.approx((before.item(), after.item()), rel=1e-5)
    mean = features.intervene(network, layer, (inputs, labels), 7, groups=[0] * VOCABULARY)
    assert mean.values[0] == pytest.approx(network(inputs)[..., 7].mean().item(), rel=1e-4)
    pushed = features.direct_effects(network, layer, top=2)
    assert len(pushed) == VOCABULARY
    spread = layer.eigenvalues.sqrt()
    assert [push.name for push in pushed[8999].up] == ["8999", "0"]
    assert pushed[8999].up[0].value == pytest.approx(spread[8999].item() * (1 - 1 / VOCABULARY))
    assert pushed[8999].down[0].value == pytest.approx(-spread[8999].item() / VOCABULARY)


def test_an_identity_that_is_not_stored_answers_like_one_that_is() -> None:
    network, inputs = interbasis.from_hf(random_model("gpt2"), output=True), tokens(5, 6)
    layer = interbasis.build(network, inputs, edge_method=None).graph.layers[-1]
    eye = torch.eye(layer.width, dtype=torch.float64)
    dense = LayerBasis(layer.name, eye, eye, layer.mean, layer.eigenvalues, layer.variances, constant=False)
    assert layer.identity
    assert not dense.identity
    labels = inputs.roll(-1, 1)
    for ask in (
        lambda basis: features.direct_effects(network, basis),
        lambda basis: features.examples(features.FeatureReader(network, basis), inputs),
        lambda basis: features.intervene(network, basis, (inputs, labels), 3, 2.0),
        lambda basis: features.intervene(network, basis, (inputs, labels), 3).loss,
    ):
        assert ask(layer) == ask(dense)


def capped(name: str) -> nn.Module:
    """A tiny Gemma whose logits reach well into the bend of the cap."""
    config = configs()[name]
    config.final_logit_softcapping = 0.5
    model = random_model("gemma2" if name == "gemma2" else "gemma3")
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    made.load_state_dict(model.state_dict())
    return made


@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_direct_effects_go_through_the_soft_cap(name: str, output: bool) -> None:
    """The derivative, by autograd, of the model's own head at the mean that the basis was fitted to."""
    model, inputs = capped(name), tokens(5, 6)
    network = interbasis.from_hf(model, output=output)
    layers = interbasis.build(network, inputs, edge_method=None).graph.layers
    cap = model.config.final_logit_softcapping
    gain = 1 + model.model.norm.weight.detach()  # what the head reads is gain ∘ normalised

    def head(normalised: torch.Tensor) -> torch.Tensor:
        """As transformers does it after its last norm."""
        return cap * torch.tanh(model.lm_head(gain * normalised) / cap)

    layer = layers[-2 if output else -1]
    assert layer.name == "unembed"
    mean = network.activations(inputs)[network.layers.index("unembed")][..., 1:].flatten(0, 1).mean(0)
    slopes = torch.autograd.functional.jacobian(head, mean)  # [vocabulary, d]
    assert ((1 - slopes.norm(dim=1) / (model.lm_head.weight * gain).norm(dim=1)).max() > 0.1).item()
    expected = (slopes @ layer.inverse[1:, 1:]).detach()
    expected = expected - expected.mean(0)
    assert relative_error(direct_path(network, layer).T[:, 1:], expected) <= 1e-10
    moved = expected * layer.eigenvalues[1:].sqrt()
    first = features.direct_effects(network, layer)[1]
    assert [push.name for push in first.up] == [
        str(i) for i in moved[:, 0].argsort(descending=True)[:5].tolist()
    ]
    assert first.up[0].value == pytest.approx(moved[:, 0].max().item(), rel=1e-10)
    if output:
        logits = layers[-1]
        slope = 1 - (logits.mean / cap).tanh().square()
        own = torch.diag(slope) - slope / len(slope)
        assert relative_error(direct_path(network, logits).T, own) <= 1e-12


def test_features_of_a_run_behind_a_soft_cap(tmp_path: Path, cli: Cli) -> None:
    model, data = saved(capped("gemma2").float(), tmp_path, 23)
    assert cli("build", model, "--data", data, "--out", tmp_path / "run").code == 0
    assert cli("features", tmp_path / "run", "--top", 2).code == 0
    *_, last = load_result(tmp_path / "run", FeaturesResult).layers.values()
    assert last.name == "unembed"
    assert len(last.features[0].effects.up) == 5
