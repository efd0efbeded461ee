"""`interbasis features` and what it stores."""

import base64
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import interbasis
from cases import mlp, normal
from command_line import Cli
from interbasis import features
from interbasis.analysis.features.labels import MIN_AREA
from interbasis.analysis.stages.features import ExamplesResult, FeaturesResult
from interbasis.analysis.stored_results import load_result
from interbasis.data.samples import Samples
from interbasis.graph.store import load
from interbasis.run.run import open_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, small_addition: Path, cli: Cli) -> Path:
    folder = tmp_path_factory.mktemp("features")
    assert cli("build", f"modadd:{small_addition}", "--out", folder / "run").code == 0
    return folder / "run"


def test_a_run_is_described_and_its_results_are_stored(run: Path, cli: Cli) -> None:
    printed = cli("features", run, "--top", 3, "--json").json
    stored, shown = load_result(run, FeaturesResult), load_result(run, ExamplesResult)
    assert printed == json.loads(stored.model_dump_json()) | {"run": str(run)}
    assert list(stored.layers) == ["attn_in.0", "mlp_in.0", "unembed", "output"]
    assert list(stored.layers["attn_in.0"].by_index()) == [1, 2, 3]
    assert list(stored.layers["output"].by_index()) == [0, 1, 2]
    first = stored.layers["attn_in.0"].features[0]
    graph = load(run)
    network = interbasis.modadd.load(graph.provenance.model.removeprefix("modadd:"))
    label = features.fourier(network, graph.layers[0])[1]
    assert first.evidence[0].kind == "position"  # which explains more than the Fourier term of the rest
    assert first.label == f"{first.evidence[0].text} {first.positions.share:.0%}"
    inner = stored.layers["mlp_in.0"].features[0]
    assert inner.label == features.fourier(network, graph.layers[1])[1].text
    responds = [one for one in inner.evidence if "effect" not in one.kind]
    assert [one.kind for one in responds] == ["fourier", "class"]
    assert responds[0].share == pytest.approx(inner.fourier.terms[0].share)
    shares = [one.share for one in inner.evidence]
    assert len(shares) == 3
    assert shares == sorted(shares, reverse=True)
    assert first.fourier.terms[0].share == label.share
    assert len(first.positions.means) == 3
    assert sum(first.histogram.counts) == 3 * graph.provenance.samples["data"]
    assert stored.layers["mlp_in.0"].features[0].positions is None
    assert len(stored.layers["unembed"].features[0].effects.up) == 5
    assert [idle.layer for idle in stored.idle] == ["mlp_in.0", "unembed"]
    assert shown.kind == "tokens"
    assert shown.layers["attn_in.0"][0].bands[0].examples[0].tokens[2] == "="


def test_people_get_a_table_and_the_same_files_again(run: Path, cli: Cli) -> None:
    assert cli("features", run, "--top", 3).code == 0
    before = [(run / f"{name}.json").read_bytes() for name in ("features", "examples")]
    code, out, _ = cli("features", run, "--top", 3)
    assert code == 0
    assert [(run / f"{name}.json").read_bytes() for name in ("features", "examples")] == before
    assert "attn_in.0" in out
    assert "cos(" in out
    assert "without outgoing edges" in " ".join(out.split())


def test_bad_input_ends_with_one_sentence(run: Path, tmp_path: Path, cli: Cli) -> None:
    for arguments in (["--top", "0"], ["--ends", "0"], ["--data", "other"]):
        code, _, err = cli("features", run, *arguments)
        assert code == 2
        assert "error:" in err
    assert cli("features", tmp_path).code == 2


def test_labelled_rows_are_probed() -> None:
    case = mlp(nn.ReLU())
    labels = (case.inputs[:, 0] > 0.3).long()
    graph = interbasis.build(case.network, case.inputs).graph
    data = Samples(
        len(labels),
        lambda a, b: (case.inputs[a:b], labels[a:b]),
        "rows",
        classes=("low", "high", "higher", "highest"),
    )
    opened = open_run(graph, case.network, data)
    described, shown = opened.features(), opened.stored(ExamplesResult)
    layer = features.FeatureReader(case.network, graph.layers[1])
    values = features.collect(layer, case.inputs)
    feature = described.layers[graph.layers[1].name].features[0]
    assert feature.classes.names == ("low", "high")
    assert feature.classes.auroc[1] == pytest.approx(features.auroc(values, labels == 1)[1].item(), rel=1e-5)
    assert feature.classes.means[0] == pytest.approx(values[labels == 0, 1].mean().item(), rel=1e-5)
    separation = max(abs(area - 0.5) for area in feature.classes.auroc) + 0.5
    assert ("AUROC" in feature.label) == (separation >= MIN_AREA)
    assert shown.kind == "rows"
    example = shown.layers[graph.layers[0].name][0].bands[0].examples[0]
    assert example.label == ("low", "high")[int(labels[example.sample])]


def test_images_given_as_arrays_are_shown_as_thumbnails() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)).double()
    images, labels = normal(24, 3, 4, 4), torch.arange(24) % 3
    network = interbasis.from_torch(module, images[:2])
    graph = interbasis.build(network, images).graph
    data = Samples(24, lambda a, b: (images[a:b], labels[a:b]), "rows", classes=("ant", "bee", "cat"))
    opened = open_run(graph, network, (images, labels))
    described, shown = opened.features(top=3, bands=0), opened.stored(ExamplesResult)
    assert shown.kind == "images"
    example = shown.layers[graph.layer_names[-1]][0].bands[0].examples[0]
    header, _, picture = example.image.partition(",")
    assert header == "data:image/png;base64"
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    assert example.label == str(int(labels[example.sample]))
    named = open_run(graph, network, data).features(top=3, bands=0)
    last = named.layers[graph.layer_names[-1]].features[0]
    assert last.classes.names == ("ant", "bee", "cat")
    assert {push.name for push in last.effects.up} == {"ant", "bee", "cat"}
    unnamed = described.layers[graph.layer_names[-1]].features[0].effects
    assert {push.name for push in unnamed.up} == {"0", "1", "2"}
    best, worst = unnamed.up[0].value ** 2, unnamed.down[0].value ** 2
    assert unnamed.share == pytest.approx((best + worst) / sum(push.value**2 for push in unnamed.up))


def test_classes_of_few_samples_explain_little_by_chance() -> None:
    case = mlp(nn.ReLU())
    inputs, labels = normal(40, 6, seed=5), torch.arange(40) % 20
    graph = interbasis.build(case.network, inputs).graph
    described = open_run(graph, case.network, (inputs, labels)).features()
    first = described.layers[graph.layers[0].name].features
    values = features.collect(features.FeatureReader(case.network, graph.layers[0]), inputs)
    raw = features.explained_variance(values, labels)
    assert raw[1:].mean() > 0.4
    for one in first:
        adjusted = 1 - (1 - raw[one.index].item()) * 39 / 20
        assert one.classes.explained == pytest.approx(max(0, adjusted), rel=1e-5, abs=1e-12)


def test_a_feature_of_the_first_position_is_not_one_of_the_token_before() -> None:
    """As in real models, the first position stands out; the token before it is a small part of a feature."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPTNeoConfig(
        vocab_size=12, hidden_size=16, num_layers=1, num_heads=1, max_position_embeddings=12, window_size=2,
        attention_types=[[["local"], 1]], intermediate_size=16, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPTNeoForCausalLM(config).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.copy_(torch.randn_like(weight) / weight.shape[-1] ** 0.5)
        model.transformer.wpe.weight.zero_()
        model.transformer.wpe.weight[0] = 6 * torch.randn(16)
    network, tokens = interbasis.from_hf(model).double(), torch.randint(0, 12, (200, 12))
    graph = interbasis.build(network, tokens, dtype="float64", edge_method=None, norm_limit=0).graph
    found = open_run(graph, network, tokens).features(top=6, mean_effect_samples=0)
    described = [one for layer in found.layers.values() for one in layer.features]
    first = [one for one in described if one.positions.share > 0.9 and one.evidence[0].kind != "variance"]
    assert len(first) >= 3
    for one in first:
        assert one.label.startswith("position 0 ")
        assert all(known.share < 0.1 for known in one.evidence if known.kind in ("previous", "context"))


@pytest.mark.parametrize("sequences", [1, 2, 3])
def test_a_model_that_knows_no_positions_has_no_features_of_them(sequences: int) -> None:
    pytest.importorskip("transformers")
    from tiny_models import random_model

    model = random_model("gpt2")
    torch.nn.init.zeros_(model.transformer.wpe.weight)
    network = interbasis.from_hf(model).double()
    tokens = torch.randint(0, 23, (sequences, 16), generator=torch.Generator().manual_seed(sequences))
    graph = interbasis.build(network, tokens, dtype="float64", edge_method=None, norm_limit=0).graph
    found = open_run(graph, network, tokens).features(top=4, mean_effect_samples=0)
    first = found.layers[graph.layer_names[0]].features
    assert not any(one.label.startswith("position") for one in first)
    if sequences == 1:
        assert all(one.positions.share == 0 for one in first)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Path:
    """A run of documents of 1 to 12 tokens, built by the command."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("documents")
    torch.manual_seed(0)
    shape = {"vocab_size": 30, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
    config = transformers.GPT2Config(bos_token_id=1, eos_token_id=1, **shape)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder / "model")
    texts = [[1, *torch.randint(2, 30, (int(n),)).tolist()] for n in torch.randint(1, 12, (24,))]
    torch.tensor(sum(texts, [])).numpy().astype("uint16").tofile(folder / "text.uint16")  # noqa: RUF017
    data = f"tokens:{folder / 'text.uint16'},context=12,per=document,bos=1,part=all"
    arguments = ["--data", data, "--edge-method", "none", "--out", folder / "run"]
    ended = cli("build", f"hf:{folder / 'model'}", *arguments)
    assert ended.code == 0, ended.err
    return folder / "run"


def test_documents_of_different_lengths_are_described(documents: Path, cli: Cli) -> None:
    """The state of the pass, which a folder keeps, holds inputs of different lengths."""
    ended = cli("features", documents, "--top", 3)
    assert ended.code == 0, ended.err
    stored, shown = load_result(documents, FeaturesResult), load_result(documents, ExamplesResult)
    opened = open_run(documents)
    lengths = opened.data(None, "train").lengths
    assert lengths.min() == 1 < lengths.max()
    again = open_run(opened.graph, opened.network, opened.data(None, "train"))
    described, examples = again.features(top=3), again.stored(ExamplesResult)
    assert {k: v.features for k, v in stored.layers.items()} == {
        k: v.features for k, v in described.layers.items()
    }
    assert shown.layers == examples.layers
    for name, layer in stored.layers.items():
        for one in layer.features:
            assert sum(one.histogram.counts) == lengths.sum()
            assert len(one.positions.means) == lengths.max()
        for one in shown.layers[name]:
            for example in (example for band in one.bands for example in band.examples):
                assert example.position < lengths[example.sample]
                assert len(example.tokens) <= lengths[example.sample]


def test_a_network_with_other_weights_is_refused() -> None:
    case = mlp(nn.ReLU())
    graph = interbasis.build(case.network, case.inputs).graph
    other = mlp(nn.ReLU(), bias=False).network
    with pytest.raises(interbasis.InterbasisError, match="weights differ"):
        open_run(graph, other, case.inputs)


def test_features_are_a_public_name() -> None:
    assert interbasis.features is features
    assert "features" in dir(interbasis)
    assert callable(interbasis.features.direct_effects)
    assert torch.is_tensor(interbasis.features.auroc(torch.eye(2), torch.tensor([0, 1])))
