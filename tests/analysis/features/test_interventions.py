"""Features set to a value, against the same thing done by hand on the plain module."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import interbasis
from cases import Case, mlp, positionwise
from interbasis import features
from interbasis.data.samples import Samples, next_tokens
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import Network


@pytest.fixture
def case() -> tuple[Case, Tensor]:
    made = mlp(nn.ReLU())
    return made, torch.arange(len(made.inputs)) % 4


@pytest.fixture
def layers(case: tuple[Case, Tensor]) -> list[LayerBasis]:
    return interbasis.build(case[0].network, case[0].inputs, edge_method=None).graph.layers


def by_hand(
    case: tuple[Case, Tensor], layer: LayerBasis, at: int, feature: int, values: torch.Tensor
) -> tuple[Any, int | float]:
    """Set the feature in the module's own hidden layer; values [n]."""
    made, labels = case
    modules = list(made.original)
    start = 3 * at  # Linear, activation, Dropout
    x = nn.Sequential(*modules[:start])(made.inputs)
    f = torch.cat([torch.ones(len(x), 1, dtype=x.dtype), x], dim=1)
    f = f + (values - f @ layer.transform[feature])[:, None] * layer.inverse[:, feature]
    assert torch.allclose(f @ layer.transform[feature], values)
    logits = nn.Sequential(*modules[start:])(f[:, 1:])
    return (logits.argmax(-1) == labels).double().mean().item(), cross_entropy(logits, labels).item()


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_feature_set_to_its_class_mean(
    case: tuple[Case, Tensor], layers: list[LayerBasis], at: int
) -> None:
    made, labels = case
    found = features.intervene(made.network, layers[at], case_data(case), 1)
    f = features.collect(features.FeatureReader(made.network, layers[at]), made.inputs)[:, 1]
    means = torch.stack([f[labels == c].mean() for c in range(4)])
    assert found.values == pytest.approx(means.tolist(), rel=1e-10)
    accuracy, loss = by_hand(case, layers[at], at, 1, means[labels])
    assert found.accuracy[1] == accuracy
    assert found.loss[1] == pytest.approx(loss, rel=1e-10)
    plain = made.original(made.inputs)
    assert found.accuracy[0] == (plain.argmax(-1) == labels).double().mean().item()
    assert found.loss[0] == pytest.approx(cross_entropy(plain, labels).item(), rel=1e-10)


def case_data(case: tuple[Case, Tensor]) -> tuple[Any, Any]:
    return case[0].inputs, case[1]


def test_groups_of_classes_and_any_value(case: tuple[Case, Tensor], layers: list[LayerBasis]) -> None:
    made, labels = case
    group = torch.tensor([0, 1, 1, 0])[labels]
    found = features.intervene(made.network, layers[1], case_data(case), 2, groups=[0, 1, 1, 0])
    f = features.collect(features.FeatureReader(made.network, layers[1]), made.inputs)[:, 2]
    means = torch.stack([f[group == g].mean() for g in range(2)])
    assert found.loss[1] == pytest.approx(by_hand(case, layers[1], 1, 2, means[group])[1], rel=1e-10)
    fixed = features.intervene(made.network, layers[1], case_data(case), 2, 1.5)
    expected = by_hand(case, layers[1], 1, 2, torch.full((40,), 1.5, dtype=torch.float64))[1]
    assert fixed.loss[1] == pytest.approx(expected, rel=1e-10)
    assert fixed.values == (1.5,)


def test_means_may_come_from_other_data(case: tuple[Case, Tensor], layers: list[LayerBasis]) -> None:
    made, labels = case
    half = (made.inputs[:20], labels[:20])
    found = features.intervene(made.network, layers[1], case_data(case), 2, mean_data=half)
    same = features.intervene(made.network, layers[1], half, 2)
    assert found.values == pytest.approx(same.values)
    assert found.samples == 40


def test_every_position_may_have_a_label() -> None:
    made = positionwise()
    labels = torch.arange(36).view(9, 4) % 3
    layers = interbasis.build(made.network, made.inputs, edge_method=None).graph.layers
    whole = features.intervene(made.network, layers[0], (made.inputs, labels), 1)
    flat = features.intervene(made.network, layers[0], (made.inputs.flatten(0, 1), labels.flatten()), 1)
    assert whole.loss == pytest.approx(flat.loss, rel=1e-10)
    ignoring = labels.clone()
    ignoring[:, 0] = -100
    kept = features.intervene(made.network, layers[0], (made.inputs, ignoring), 1)
    fewer = features.intervene(made.network, layers[0], (made.inputs[:, 1:], labels[:, 1:]), 1)
    assert kept.loss == pytest.approx(fewer.loss, rel=1e-10)


def changed_by_hand(
    network: Network, layer: LayerBasis, inputs: Tensor, feature: int, value: float
) -> torch.Tensor:
    """Logits [n, T, outputs] with the feature set at every position."""
    k = network.layers.index(layer.name)
    f = network.activations(inputs)[k]
    f = f + (value - f @ layer.transform[feature])[..., None] * layer.inverse[:, feature]
    for step in (*network.sections[k:], *network.tail):
        f = step(f)
    return f[..., network.output_layer.first_coordinate :]


def language_model() -> tuple[Network, LayerBasis, Tensor]:
    transformers = pytest.importorskip("transformers")
    assert transformers
    from tiny_models import random_model, tokens

    network, inputs = interbasis.from_hf(random_model("gpt2")).double(), tokens(9, 6)
    graph = interbasis.build(network, inputs, dtype="float64", edge_method=None).graph
    return network, graph.layers[network.layers.index("mlp_in.0")], inputs


def test_a_value_is_set_at_every_position_of_a_language_model() -> None:
    """At the last one, too, which has no token that follows."""
    network, layer, inputs = language_model()
    expected = changed_by_hand(network, layer, inputs, 3, 1.3)
    found = features.intervene(network, layer, inputs, 3, 1.3, outputs=True)
    assert torch.allclose(found.outputs[0], network(inputs), atol=1e-12)
    assert torch.allclose(found.outputs[1], expected, atol=1e-12)
    loss = cross_entropy(expected[:, :-1].flatten(0, 1), inputs[:, 1:].flatten())
    assert found.loss[1] == pytest.approx(loss.item(), rel=1e-10)
    labels = torch.full_like(inputs, -100)
    labels[:, 3] = inputs[:, 4]
    few = features.intervene(network, layer, (inputs, labels), 3, 1.3, outputs=True)
    assert torch.equal(few.outputs[1], found.outputs[1])
    assert few.loss[1] == pytest.approx(cross_entropy(expected[:, 3], inputs[:, 4]).item(), rel=1e-10)


def test_outputs_of_documents_of_different_lengths() -> None:
    network, layer, inputs = language_model()
    lengths = [6, 2, 2, 1, 6, 3, 4, 5, 6]
    read = lambda first, last: (inputs[first:last], next_tokens(inputs[first:last]))  # noqa: E731
    data = Samples(9, read, kind="tokens", lengths=torch.tensor(lengths))
    found = features.intervene(network, layer, data, 3, 1.3, outputs=True)
    for outputs in found.outputs:
        assert outputs.shape == (9, 6, 23)
    for sample, length in enumerate(lengths):
        expected = changed_by_hand(network, layer, inputs[sample : sample + 1, :length], 3, 1.3)[0]
        assert torch.allclose(found.outputs[1][sample, :length], expected, atol=1e-12)
        assert found.outputs[1][sample, length:].isnan().all()


def test_the_last_layer_can_be_set(case: tuple[Case, Tensor], layers: list[LayerBasis]) -> None:
    found = features.intervene(case[0].network, layers[3], case_data(case), 1)
    assert found.loss[1] != found.loss[0]


def test_bad_input_is_refused(case: tuple[Case, Tensor], layers: list[LayerBasis]) -> None:
    network, data = case[0].network, case_data(case)
    with pytest.raises(interbasis.InterbasisError, match="features 0 to"):
        features.intervene(network, layers[0], data, 99)
    with pytest.raises(interbasis.InterbasisError, match="each of 2 classes"):
        features.intervene(network, layers[0], data, 1, groups=[0, 1])
    with pytest.raises(interbasis.InterbasisError, match=r"no mean for.* group 2"):
        features.intervene(network, layers[0], data, 1, mean_data=(data[0][:2], data[1][:2]))
    with pytest.raises(interbasis.InterbasisError, match="labels are required"):
        features.intervene(network, layers[0], data[0], 1)


def test_a_value_needs_no_labels(case: tuple[Case, Tensor], layers: list[LayerBasis]) -> None:
    made, _ = case
    found = features.intervene(made.network, layers[1], made.inputs, 2, 0.7, outputs=True)
    assert all(number != number for number in (*found.accuracy, *found.loss))  # NaN
    before, after = found.outputs
    assert torch.allclose(before, made.original(made.inputs))
    labelled = features.intervene(made.network, layers[1], case_data(case), 2, 0.7, outputs=True)
    assert torch.equal(after, labelled.outputs[1])
    assert labelled.loss[1] == pytest.approx(cross_entropy(after, case[1]).item())
    assert features.intervene(made.network, layers[1], case_data(case), 2, 0.7).outputs is None
    with pytest.raises(interbasis.InterbasisError, match="labels are required"):
        features.intervene(made.network, layers[1], made.inputs, 2)
