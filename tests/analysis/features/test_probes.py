"""Probes against scikit-learn and plain definitions."""

import pytest
import torch
from sklearn.feature_selection import r_regression
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import interbasis
from cases import mlp, normal
from interbasis import features
from interbasis.analysis.features.probes import GroupMoments


def test_auroc_is_scikit_learns_with_ties_and_for_many_attributes() -> None:
    values = (normal(200, 7) * 2).round()  # many ties
    truth = normal(200, 3, seed=1) + 0.5 * values[:, :3] > 0.3
    found = features.auroc(values, truth)
    for a in range(3):
        expected = [roc_auc_score(truth[:, a].numpy(), values[:, j].numpy()) for j in range(7)]
        assert found[a].tolist() == pytest.approx(expected, rel=1e-12)
        assert features.auroc(values, truth[:, a]).tolist() == found[a].tolist()
    assert features.separation(torch.tensor([0.1, 0.7])).tolist() == pytest.approx([0.9, 0.7])


def test_a_constant_feature_separates_nothing() -> None:
    assert features.auroc(torch.ones(6, 1), torch.tensor([1, 0, 1, 0, 0, 0])).item() == 0.5


def test_variance_explained_by_a_label() -> None:
    labels = torch.arange(60) % 3
    values = torch.stack([labels.double(), normal(60), torch.full((60,), 0.1)], dim=1)
    by_hand = []
    for column in values.T[:2]:
        within = sum(((part := column[labels == c]) - part.mean()).square().sum() for c in range(3))
        by_hand.append((1 - within / (column - column.mean()).square().sum()).item())
    assert features.explained_variance(values, labels).tolist() == pytest.approx([*by_hand, 0.0], abs=1e-12)


def test_r_squared_is_the_squared_correlation() -> None:
    values, attribute = normal(50, 4), normal(50, seed=1)
    values[:, 3] = 0.1
    expected = r_regression(values[:, :3].numpy(), attribute.numpy()) ** 2
    assert features.r_squared(values, attribute).tolist() == pytest.approx([*expected, 0.0], rel=1e-12)


def test_moments_merge_and_leave_ignored_labels_out() -> None:
    values, groups = normal(40, 3) + 5, torch.randint(0, 4, (40,), generator=torch.Generator().manual_seed(0))
    groups[3] = -100
    groups[:20].clamp_(max=1)
    merged = GroupMoments.from_values(values[:20], groups[:20]).merge(
        GroupMoments.from_values(values[20:], groups[20:])
    )
    whole = GroupMoments.from_values(values, groups)
    for name in ("counts", "means", "scatters", "explained", "between"):
        assert torch.allclose(getattr(merged, name), getattr(whole, name), rtol=1e-12), name
    known = values[groups != -100]
    variance = (whole.between + whole.scatters.sum(0)) / whole.total
    assert torch.allclose(variance, known.var(0, correction=0), rtol=1e-12)


def test_the_best_features() -> None:
    assert [index for index, _ in features.best(torch.tensor([0.5, 0.9, 0.9, 0.1]), 3)] == [1, 2, 0]


def test_a_layer_is_probed_in_one_pass() -> None:
    case = mlp(nn.ReLU())
    labels = (case.inputs[:, 0] > 0).long() + 2 * (case.inputs[:, 1] > 1).long()
    layer = interbasis.build(case.network, case.inputs, edge_method=None).graph.layers[1]
    source = features.FeatureReader(case.network, layer)
    found = features.probe(source, (case.inputs, labels), positive=[2, 3])
    values = features.collect(source, case.inputs)
    assert found.classes == tuple(labels.unique().tolist())
    assert torch.equal(found.area[0], features.auroc(values, labels == 0))
    assert torch.equal(found.attribute_area, features.auroc(values, labels >= 2))
    assert torch.equal(found.attribute_explained, features.explained_variance(values, (labels >= 2).long()))
    assert torch.equal(found.explained, features.explained_variance(values, labels))


@pytest.mark.parametrize(
    ("values", "truth", "reason"),
    [
        (torch.zeros(3, 2), torch.zeros(3), "at least one sample with"),
        (torch.zeros(3, 2), torch.zeros(4), "one truth value for each"),
        (torch.full((2, 1), torch.nan), torch.tensor([0, 1]), "finite"),
    ],
)
def test_bad_input_is_refused(values: Tensor, truth: Tensor, reason: str) -> None:
    with pytest.raises(interbasis.InterbasisError, match=reason):
        features.auroc(values, truth)


def test_sources_are_checked() -> None:
    case = mlp(nn.ReLU())
    with pytest.raises(interbasis.InterbasisError, match="no node layer 'other'"):
        features.FeatureReader(case.network, interbasis.LayerBasis("other", torch.eye(3), torch.eye(3)))
    with pytest.raises(interbasis.InterbasisError, match="3 coordinates"):
        features.FeatureReader(case.network, interbasis.LayerBasis("linear.0", torch.eye(3), torch.eye(3)))
    with pytest.raises(interbasis.InterbasisError, match="finite"):
        features.collect(lambda inputs: inputs[:, None] / 0, case.inputs)
    with pytest.raises(interbasis.InterbasisError, match="samples, positions, features"):
        features.collect(lambda inputs: inputs[0], case.inputs)
    with pytest.raises(interbasis.InterbasisError, match="two classes"):
        features.probe(lambda inputs: inputs, (case.inputs, torch.zeros(40, dtype=torch.long)))
