"""Every variant of a dictionary against a reference in numpy that does what its library does, in float64.

The references follow each library's definition step by step (subtract, scale, gate, choose, decode); nothing
is folded. tests/dictionaries/test_packages.py holds the libraries themselves against the same readers.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from interbasis import dictionaries

Array = NDArray[np.float64]
WIDTH, WIDTH_OUT, FEATURES, TOKENS = 10, 8, 30, 60
TOLERANCE = 1e-12  # of the largest value


def random(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def activations() -> Array:
    return 1.5 * random(TOKENS, WIDTH, seed=99) + 0.3


def relu(u: Array) -> Array:
    return np.maximum(u, 0)


def largest(u: Array, k: int) -> Array:
    """u where it is among the k largest of its token."""
    kept = np.zeros_like(u)
    for row, values in zip(kept, u, strict=True):
        chosen = sorted(range(len(values)), key=lambda i: -values[i])[:k]
        row[chosen] = values[chosen]
    return kept


def assert_equal(dictionary: dictionaries.Dictionary, z: Array, reconstruction: Array) -> None:
    x = torch.from_numpy(activations())
    assert 0.02 < (z != 0).mean() < 0.98
    for ours, reference in ((dictionary.encode(x), z), (dictionary.reconstruct(x), reconstruction)):
        assert np.abs(ours.numpy() - reference).max() <= TOLERANCE * np.abs(reference).max()


# SAELens


def weights(architecture: str = "standard") -> dict[str, Array]:
    """What sae_weights.safetensors holds."""
    width_out = WIDTH_OUT if "transcoder" in architecture else WIDTH
    values = {
        "W_enc": random(WIDTH, FEATURES, seed=1) * 0.4,
        "W_dec": random(FEATURES, width_out, seed=2) * 0.3,
        "b_dec": random(width_out, seed=3),
    }
    if architecture == "gated":
        names = ("b_gate", "b_mag", "r_mag")
        return values | {name: random(FEATURES, seed=4 + i) * 0.5 for i, name in enumerate(names)}
    values["b_enc"] = random(FEATURES, seed=7) * 0.5
    if "jumprelu" in architecture:
        values["threshold"] = random(FEATURES, seed=8) * 0.5 + 0.2
    if "batchtopk" in architecture:
        values["topk_threshold"] = np.array(0.7)
    if "skip" in architecture:
        values["W_skip"] = random(width_out, WIDTH, seed=9) * 0.2
    return values


def write_sae_lens(folder: Path, architecture: str, values: dict[str, Array], **config: object) -> Path:
    folder.mkdir(exist_ok=True)
    sizes = {"d_in": WIDTH, "d_sae": FEATURES, "d_out": values["W_dec"].shape[1]}
    metadata = {"hook_name": "blocks.1.hook_resid_pre", "sae_lens_version": "6.54.12", "model_name": "tiny"}
    if "transcoder" in architecture:
        metadata["hook_name_out"] = "blocks.1.hook_mlp_out"
        config = {"apply_b_dec_to_input": False} | config
    (folder / "cfg.json").write_text(
        json.dumps({"architecture": architecture, "dtype": "float64", "metadata": metadata} | sizes | config)
    )
    tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in values.items()}
    save_file(tensors, folder / "sae_weights.safetensors")
    return folder


def decoder_norms(values: dict[str, Array]) -> Array:
    return np.sqrt((values["W_dec"] ** 2).sum(-1))


def sae_lens_activations(
    x: Array, values: dict[str, Array], architecture: str, k: int, rescale: bool
) -> Array:
    if architecture == "gated":
        is_open = x @ values["W_enc"] + values["b_gate"] > 0
        return is_open * relu(x @ (values["W_enc"] * np.exp(values["r_mag"])) + values["b_mag"])
    u = x @ values["W_enc"] + values["b_enc"]
    if rescale:
        u = u * decoder_norms(values)
    if architecture == "topk":
        return relu(largest(u, k))
    return relu(u) * (u > values.get("threshold", values.get("topk_threshold", 0.0)))


def sae_lens(
    values: dict[str, Array],
    architecture: str,
    k: int = 4,
    subtract: bool = True,
    rescale: bool = False,
    norm: str = "none",
    scale: float = 1.0,
) -> tuple[Array, Array]:
    """Activations and reconstruction, in SAELens' order of steps."""
    x = activations() * scale
    mean, size, eps = 0.0, 1.0, 0.0
    if norm == "layer_norm":
        mean, size, eps = x.mean(-1, keepdims=True), x.std(-1, ddof=1, keepdims=True), 1e-5
    elif norm == "constant_norm_rescale":
        size = np.sqrt((x**2).mean(-1, keepdims=True))
    inner = (x - mean) / (size + eps) - (values["b_dec"] if subtract else 0.0)
    z = sae_lens_activations(inner, values, architecture, k, rescale)
    decoded = (z / decoder_norms(values) if rescale else z) @ values["W_dec"] + values["b_dec"]
    if "W_skip" in values:
        decoded = decoded + x @ values["W_skip"].T
    return z, (decoded * size + mean) / scale


NORMS = ("none", "layer_norm", "constant_norm_rescale")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("subtract", [True, False])
@pytest.mark.parametrize("architecture", ["standard", "gated", "topk", "jumprelu"])
def test_autoencoders_of_sae_lens(architecture: str, subtract: bool, norm: str, tmp_path: Path) -> None:
    values = weights(architecture)
    settings = {"apply_b_dec_to_input": subtract, "normalize_activations": norm, "k": 4}
    dictionary = dictionaries.load(write_sae_lens(tmp_path, architecture, values, **settings))
    assert_equal(dictionary, *sae_lens(values, architecture, subtract=subtract, norm=norm))
    assert (dictionary.hook, dictionary.output_hook) == ("blocks.1.hook_resid_pre", "")
    assert dictionary.model == "tiny"


@pytest.mark.parametrize("architecture", ["topk", "batchtopk", "matryoshka_batchtopk"])
@pytest.mark.parametrize("rescale", [True, False])
def test_decoder_norms_of_sae_lens(architecture: str, rescale: bool, tmp_path: Path) -> None:
    values = weights(architecture)
    path = write_sae_lens(tmp_path, architecture, values, k=6, rescale_acts_by_decoder_norm=rescale)
    assert_equal(dictionaries.load(path), *sae_lens(values, architecture, k=6, rescale=rescale))


@pytest.mark.parametrize(
    "architecture", ["transcoder", "skip_transcoder", "jumprelu_transcoder", "jumprelu_skip_transcoder"]
)
def test_transcoders_of_sae_lens(architecture: str, tmp_path: Path) -> None:
    values = weights(architecture)
    dictionary = dictionaries.load(write_sae_lens(tmp_path, architecture, values))
    assert_equal(dictionary, *sae_lens(values, architecture, subtract=False))
    assert dictionary.is_transcoder
    assert dictionary.output_hook == "blocks.1.hook_mlp_out"


@pytest.mark.parametrize("architecture", ["standard", "gated", "jumprelu", "topk", "transcoder"])
def test_a_scale_of_the_activations(architecture: str, tmp_path: Path) -> None:
    values, subtract = weights(architecture), architecture != "transcoder"
    write_sae_lens(tmp_path, architecture, values, k=5, normalize_activations="expected_average_only_in")
    expected = sae_lens(values, architecture, k=5, subtract=subtract, scale=0.35)
    assert_equal(dictionaries.load(tmp_path, scale=0.35), *expected)
    (tmp_path / "activation_scaler.json").write_text('{"scaling_factor": 0.35}')
    assert_equal(dictionaries.load(tmp_path), *expected)


def test_configs_before_version_6(tmp_path: Path) -> None:
    values = weights() | {"scaling_factor": 1 + 0.3 * random(FEATURES, seed=11)}
    old = {
        "d_in": WIDTH, "d_sae": FEATURES, "hook_point": "blocks.2.hook_resid_pre",
        "activation_fn_str": "topk", "activation_fn_kwargs": {"k": 3}, "normalize_activations": False,
        "finetuning_scaling_factor": True,
    }  # fmt: skip
    write_sae_lens(tmp_path, "standard", values)
    (tmp_path / "cfg.json").write_text(json.dumps(old))
    dictionary = dictionaries.load(tmp_path / "sae_weights.safetensors")
    z, _ = sae_lens(values, "topk", k=3)
    assert_equal(dictionary, z, (z * values["scaling_factor"]) @ values["W_dec"] + values["b_dec"])
    assert dictionary.hook == "blocks.2.hook_resid_pre"


# sparsify


def write_sparsify(folder: Path, **config: object) -> dict[str, Array]:
    values = {
        "encoder.weight": random(FEATURES, WIDTH, seed=1) * 0.4,
        "encoder.bias": random(FEATURES, seed=2),
        "W_dec": random(FEATURES, WIDTH, seed=3),
        "b_dec": random(WIDTH, seed=4),
    }
    if config.get("skip_connection"):
        values["W_skip"] = random(WIDTH, WIDTH, seed=5)
    folder.mkdir()
    (folder / "cfg.json").write_text(json.dumps({"d_in": WIDTH, "k": 5, "activation": "topk"} | config))
    save_file({name: torch.from_numpy(value) for name, value in values.items()}, folder / "sae.safetensors")
    return values


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("transcode", [True, False])
@pytest.mark.parametrize("size", [{"num_latents": FEATURES, "expansion_factor": 32}, {"expansion_factor": 3}])
def test_sparsify(size: dict[str, int], transcode: bool, skip: bool, tmp_path: Path) -> None:
    folder = tmp_path / "layers.5.mlp"
    values = write_sparsify(folder, transcode=transcode, skip_connection=skip, **size)
    x = activations()
    inner = x if transcode else x - values["b_dec"]
    z = largest(relu(inner @ values["encoder.weight"].T + values["encoder.bias"]), 5)
    reconstruction = z @ values["W_dec"] + values["b_dec"]
    if skip:
        reconstruction = reconstruction + x @ values["W_skip"].T
    dictionary = dictionaries.load(folder)
    assert_equal(dictionary, z, reconstruction)
    hooks = ("blocks.5.mlp.hook_in", "blocks.5.hook_mlp_out") if transcode else ("blocks.5.hook_mlp_out", "")
    assert (dictionary.hook, dictionary.output_hook) == hooks


@pytest.mark.parametrize(("module", "hook"), [
    ("layers.5", "blocks.5.hook_resid_post"), ("h.0.attn", "blocks.0.hook_attn_out"),
    ("model.layers.11.self_attn", "blocks.11.hook_attn_out"), ("embed_tokens", "embed_tokens"),
])  # fmt: skip
def test_modules_of_sparsify(module: str, hook: str, tmp_path: Path) -> None:
    write_sparsify(tmp_path / module, expansion_factor=3)
    assert dictionaries.load(tmp_path / module).hook == hook


# Gemma Scope


def write_gemma_scope(folder: Path) -> dict[str, Array]:
    values: dict[str, Any] = weights("jumprelu")
    folder.mkdir(parents=True)
    np.savez(folder / "params.npz", **values)
    return values


@pytest.mark.parametrize(("site", "hooks"), [
    ("res", ("blocks.12.hook_resid_post", "")), ("mlp", ("blocks.12.hook_mlp_out", "")),
    ("transcoders", ("blocks.12.ln2.hook_normalized", "blocks.12.hook_mlp_out")),
])  # fmt: skip
def test_gemma_scope(site: str, hooks: tuple[str, str], tmp_path: Path) -> None:
    folder = tmp_path / f"gemma-scope-2b-pt-{site}" / "layer_12" / "width_16k" / "average_l0_82"
    values = write_gemma_scope(folder)
    for path in (folder, folder / "params.npz"):
        dictionary = dictionaries.load(path)
        assert_equal(dictionary, *sae_lens(values, "jumprelu", subtract=False))
        assert (dictionary.hook, dictionary.output_hook) == hooks
        assert (dictionary.name, dictionary.model) == ("layer_12/width_16k/average_l0_82", "gemma-2-2b")


def test_gemma_scope_from_a_folder_that_does_not_say_where_it_is_from(tmp_path: Path) -> None:
    write_gemma_scope(tmp_path / "mine")
    assert dictionaries.load(tmp_path / "mine").hook == ""
    layers = ["ln1.0", "attn_in.0", "ln2.0", "mlp_in.0", "ln1.1"]
    placed = dictionaries.load(tmp_path / "mine", hook="blocks.0.hook_resid_post", layers=layers)
    assert placed.hook == "ln1.1"


# circuit-tracer


def write_transcoder_set(
    folder: Path, activation: str | None, skip: bool = True, layers: int = 3
) -> list[dict[str, Array]]:
    folder.mkdir()
    settings = {"model_kind": "transcoder_set", "model_name": "org/model"}
    settings |= {"feature_input_hook": "mlp.hook_in", "feature_output_hook": "mlp.hook_out", "k": "20"}
    settings |= {"activation": activation} if activation else {}
    (folder / "config.yaml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    written = []
    for layer in range(layers):
        values = {
            "W_enc": random(FEATURES, WIDTH, seed=10 * layer) * 0.4,
            "b_enc": random(FEATURES, seed=10 * layer + 1) - 0.8,
            "W_dec": random(FEATURES, WIDTH, seed=10 * layer + 2),
            "b_dec": random(WIDTH, seed=10 * layer + 3),
        }
        if skip:
            values["W_skip"] = random(WIDTH, WIDTH, seed=10 * layer + 4)
        if activation in (None, "jumprelu"):
            values["activation_function.threshold"] = random(FEATURES, seed=10 * layer + 5) * 0.4
        tensors = {name: torch.from_numpy(value) for name, value in values.items()}
        save_file(tensors, folder / f"layer_{layer}.safetensors")
        written.append(values)
    return written


ACTIVATIONS: dict[str | None, Callable[[Array, dict[str, Array]], Array]] = {
    "relu": lambda u, _: relu(u),
    "topk": lambda u, _: largest(u, 20),  # no ReLU: some of the 20 are negative
    None: lambda u, values: u * (u > values["activation_function.threshold"]),
    "jumprelu": lambda u, values: u * (u > values["activation_function.threshold"]),
}


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_transcoder_sets(activation: str, skip: bool, tmp_path: Path) -> None:
    values = write_transcoder_set(tmp_path / "set", activation, skip)[2]
    x = activations()
    z = ACTIVATIONS[activation](x @ values["W_enc"].T + values["b_enc"], values)
    assert (activation == "relu") or z.min() < 0
    reconstruction = z @ values["W_dec"] + values["b_dec"] + (x @ values["W_skip"].T if skip else 0.0)
    for dictionary in (
        dictionaries.load(tmp_path / "set", layer=2),
        dictionaries.load(tmp_path / "set" / "layer_2.safetensors"),
    ):
        assert_equal(dictionary, z, reconstruction)
        assert (dictionary.hook, dictionary.output_hook) == ("blocks.2.mlp.hook_in", "blocks.2.mlp.hook_out")


def test_rows_of_a_set_are_read_on_demand(tmp_path: Path) -> None:
    values = write_transcoder_set(tmp_path / "set", "relu")
    transcoders = dictionaries.TranscoderSet.from_folder(tmp_path / "set")
    assert len(transcoders) == 3
    rows = [7, 0, 29, 7]
    assert np.array_equal(transcoders.encoder_rows(1, rows).numpy(), values[1]["W_enc"][rows])
    assert np.array_equal(transcoders.decoder_rows(2, rows).numpy(), values[2]["W_dec"][rows])
    assert transcoders.decoder_rows(0, []).shape == (0, WIDTH)


# Norms, places, saving


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("transcode", [True, False])
def test_the_gain_of_a_norm_is_folded(transcode: bool, with_bias: bool, tmp_path: Path) -> None:
    folder = tmp_path / "layers.5.mlp"
    write_sparsify(folder, expansion_factor=3, transcode=transcode, skip_connection=True)
    gain = torch.from_numpy(1 + 0.4 * random(WIDTH, seed=20))
    bias = torch.from_numpy(random(WIDTH, seed=21)) if with_bias else None
    after, before = dictionaries.load(folder), dictionaries.load(folder, gain=gain, bias=bias)
    x = torch.from_numpy(activations())
    shift = torch.zeros(WIDTH) if bias is None else bias
    assert torch.allclose(before.encode(x), after.encode(gain * x + shift), rtol=0, atol=1e-12)
    reconstruction = after.reconstruct(gain * x + shift)
    expected = reconstruction if transcode else (reconstruction - shift) / gain
    assert torch.allclose(before.reconstruct(x), expected, rtol=0, atol=1e-11)
    assert before.hook == ("blocks.5.ln2.hook_normalized" if transcode else "blocks.5.hook_mlp_out")


def test_hooks_become_node_layers_where_the_network_has_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layers = [f"{part}.{block}" for block in (0, 1) for part in ("ln1", "attn_in", "ln2", "mlp_in")]
    layers.append("ln_final")
    path = write_sae_lens(tmp_path, "transcoder", weights("transcoder"))
    caplog.set_level("INFO", "interbasis")
    dictionary = dictionaries.load(path, layers=layers, hook="blocks.1.ln2.hook_normalized")
    assert (dictionary.hook, dictionary.output_hook) == ("mlp_in.1", "blocks.1.hook_mlp_out")
    assert "blocks.1.hook_mlp_out is no node layer" in caplog.text
    assert dictionaries.load(path, layers=layers, hook="blocks.1.hook_resid_post").hook == "ln_final"
    assert dictionaries.load(path, layers=layers, hook="ln2.0").hook == "ln2.0"


def test_a_transcoder_s_output_is_its_block_s_mlp_where_the_file_does_not_say(tmp_path: Path) -> None:
    config = {"metadata": {"hook_name": "blocks.4.ln2.hook_normalized"}}
    path = write_sae_lens(tmp_path, "transcoder", weights("transcoder"), **config)
    assert dictionaries.load(path).output_hook == "blocks.4.hook_mlp_out"
    assert dictionaries.load(path, hook="mlp_in.2").output_hook == "blocks.2.hook_mlp_out"


SAVED = [(architecture, norm) for architecture in ("standard", "gated", "topk", "jumprelu") for norm in NORMS]
SAVED += [(f"{kind}transcoder", "none") for kind in ("", "skip_", "jumprelu_", "jumprelu_skip_")]


@pytest.mark.parametrize(("architecture", "norm"), SAVED)
def test_what_is_saved_is_loaded(architecture: str, norm: str, tmp_path: Path) -> None:
    settings = {"normalize_activations": norm, "k": 4}
    first = dictionaries.load(
        write_sae_lens(tmp_path / "first", architecture, weights(architecture), **settings)
    )
    second = dictionaries.load(dictionaries.save(first, tmp_path / "folder" / "second"))
    x = torch.from_numpy(activations())
    assert torch.equal(first.encode(x), second.encode(x))
    assert torch.equal(first.reconstruct(x), second.reconstruct(x))
    names = ("hook", "output_hook", "name", "model", "active", "scaling")
    assert [getattr(first, name) for name in names] == [getattr(second, name) for name in names]


def test_the_digest_follows_weights_and_config(tmp_path: Path) -> None:
    path = write_sae_lens(tmp_path, "topk", weights("topk"), k=4)
    before = dictionaries.load(path).digest
    assert len(before) == 64
    assert dictionaries.load(path, dtype=torch.float32).digest == before
    config = json.loads((path / "cfg.json").read_text())
    (path / "cfg.json").write_text(json.dumps(config | {"k": 5}))
    assert dictionaries.load(path).digest != before


def test_half_precision_is_read_as_float32(tmp_path: Path) -> None:
    path = write_sae_lens(tmp_path, "topk", weights("topk"), k=4)
    tensors = {name: torch.from_numpy(value).bfloat16() for name, value in weights("topk").items()}
    save_file(tensors, path / "sae_weights.safetensors")
    assert dictionaries.load(path).encoder.dtype == torch.float32
    assert dictionaries.load(path, dtype=torch.float64).decoder_bias.dtype == torch.float64
