"""Files that are incomplete, cut, of another width or of a kind without a form: one sentence each."""

import contextlib
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from interbasis import InterbasisError, dictionaries

WIDTH, FEATURES = 4, 12
SAE_LENS = {"architecture": "standard", "d_in": WIDTH, "d_sae": FEATURES}
SPARSIFY = {"d_in": WIDTH, "k": 3, "num_latents": FEATURES}


def tensors() -> dict[str, Any]:
    return {
        "W_enc": torch.ones(WIDTH, FEATURES), "b_enc": torch.ones(FEATURES),
        "W_dec": torch.ones(FEATURES, WIDTH), "b_dec": torch.ones(WIDTH),
    }  # fmt: skip


def sae_lens(folder: Path, **config: object) -> Path:
    (folder / "cfg.json").write_text(json.dumps(SAE_LENS | config))
    save_file(tensors(), folder / "sae_weights.safetensors")
    return folder


def sparsify(folder: Path, **config: object) -> Path:
    (folder / "cfg.json").write_text(json.dumps(SPARSIFY | config))
    values = {
        "encoder.weight": torch.ones(FEATURES, WIDTH), "encoder.bias": torch.ones(FEATURES),
        "W_dec": torch.ones(FEATURES, WIDTH), "b_dec": torch.ones(WIDTH),
    }  # fmt: skip
    save_file(values, folder / "sae.safetensors")
    return folder


def transcoder_set(folder: Path, **config: object) -> Path:
    settings = {
        "model_kind": "transcoder_set",
        "feature_input_hook": "hook_resid_mid", "feature_output_hook": "hook_mlp_out",
    } | config  # fmt: skip
    (folder / "config.yaml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    for layer in range(2):
        save_file(tensors() | {"W_enc": torch.ones(FEATURES, WIDTH)}, folder / f"layer_{layer}.safetensors")
    return folder


def refusal(path: Path, **arguments: Any) -> str:
    with pytest.raises(InterbasisError) as error:
        dictionaries.load(path, **arguments)
    message = str(error.value)
    assert len(message) < 700
    assert "\n" not in message
    return message


@pytest.mark.parametrize("config", [
    {"reshape_activations": "hook_z"}, {"hook_name": "blocks.0.attn.hook_z"},
    {"metadata": {"hook_name": "blocks.0.attn.hook_z"}},
])  # fmt: skip
def test_hook_z(config: dict[str, Any], tmp_path: Path) -> None:
    assert "heads' values" in refusal(sae_lens(tmp_path, **config))


def test_hook_z_of_gemma_scope(tmp_path: Path) -> None:
    folder = tmp_path / "gemma-scope-2b-pt-att" / "layer_3"
    folder.mkdir(parents=True)
    np.savez(folder / "params.npz", **tensors(), threshold=np.ones(FEATURES))
    assert "blocks.3.attn.hook_z" in refusal(folder)


def test_one_head(tmp_path: Path) -> None:
    assert "head 3 alone" in refusal(sae_lens(tmp_path, hook_head_index=3))


@pytest.mark.parametrize("architecture", ["matching_pursuit", "temporal", "abstopk", "crosscoder"])
def test_unknown_architectures(architecture: str, tmp_path: Path) -> None:
    assert f"received {architecture} in" in refusal(sae_lens(tmp_path, architecture=architecture))


def test_unknown_activation_functions(tmp_path: Path) -> None:
    message = refusal(sae_lens(tmp_path, activation_fn="tanh-relu"))
    assert "received standard with tanh-relu" in message


@pytest.mark.parametrize("k", [None, 0, FEATURES + 1])
def test_k_out_of_range(k: int | None, tmp_path: Path) -> None:
    assert f"expected k from 1 to {FEATURES}" in refusal(sae_lens(tmp_path, architecture="topk", k=k))


def test_normalisations_that_are_not_known(tmp_path: Path) -> None:
    message = refusal(sae_lens(tmp_path, normalize_activations="covariance_whitening"))
    assert "received covariance_whitening" in message
    assert "pass it as scale" in refusal(sae_lens(tmp_path, normalize_activations="expected_average_only_in"))
    message = refusal(sae_lens(tmp_path, architecture="transcoder", normalize_activations="layer_norm"))
    assert "rescales every token" in message


@pytest.mark.parametrize(("config", "received"), [
    ({"activation": "groupmax"}, "groupmax"), ({"signed": True}, "signed activations"),
])  # fmt: skip
def test_activations_of_sparsify(config: dict[str, Any], received: str, tmp_path: Path) -> None:
    assert f"received {received}" in refusal(sparsify(tmp_path, **config))


def test_too_large_k_of_sparsify(tmp_path: Path) -> None:
    assert f"expected k from 1 to {FEATURES}" in refusal(sparsify(tmp_path, k=FEATURES + 1))


@pytest.mark.parametrize("write", [sae_lens, sparsify])
def test_another_width(write: Callable[..., Path], tmp_path: Path) -> None:
    message = refusal(write(tmp_path, d_in=WIDTH + 1))
    assert re.search(r"to have the shape \[.*\], received \[.*\]", message)


@pytest.mark.parametrize("write", [sae_lens, sparsify])
def test_a_missing_tensor(write: Callable[..., Path], tmp_path: Path) -> None:
    weights = next(write(tmp_path).glob("*.safetensors"))
    values = load_file(weights)
    del values["W_dec"]
    save_file(values, weights)
    assert "expected a tensor W_dec" in refusal(tmp_path)


@pytest.mark.parametrize("write", [sae_lens, sparsify, transcoder_set])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.99])
def test_a_cut_file(write: Callable[..., Path], share: float, tmp_path: Path) -> None:
    weights = next(write(tmp_path).glob("*.safetensors"))
    content = weights.read_bytes()
    weights.write_bytes(content[: int(share * len(content))])
    path = weights if write is transcoder_set else tmp_path
    assert "could not read" in refusal(path)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_cut_archive(share: float, tmp_path: Path) -> None:
    file = tmp_path / "params.npz"
    np.savez(file, **tensors(), threshold=np.ones(FEATURES))
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    assert "could not read" in refusal(tmp_path)


CUT = ["", "{", "[]", '{"d_in": 4}', '{"d_in": "wide", "d_sae": 12}', "\x00", "[" * 9999]


@pytest.mark.parametrize("text", CUT)
def test_a_cut_config(text: str, tmp_path: Path) -> None:
    sae_lens(tmp_path)
    (tmp_path / "cfg.json").write_text(text)
    assert "could not read the config" in refusal(tmp_path)


def test_a_missing_config(tmp_path: Path) -> None:
    (sae_lens(tmp_path) / "cfg.json").unlink()
    assert "cfg.json beside the weights" in refusal(tmp_path)


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    sae_lens(tmp_path)
    save_file(tensors() | {"b_enc": torch.full((FEATURES,), torch.nan)}, tmp_path / "sae_weights.safetensors")
    assert "finite numbers" in refusal(tmp_path)
    assert "the tensor b_enc" in refusal(tmp_path)


@pytest.mark.parametrize("values", [np.ones((4, 12), dtype=">f4"), np.array([["a"]]), np.ones((2, 2, 2))])
def test_arrays_of_other_kinds(values: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "params.npz", **tensors() | {"W_enc": values}, threshold=np.ones(FEATURES))
    refusal(tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_byte_is_read_or_refused(seed: int, tmp_path: Path) -> None:
    np.savez(tmp_path / "params.npz", **tensors(), threshold=np.ones(FEATURES))
    content = bytearray((tmp_path / "params.npz").read_bytes())
    generator = np.random.default_rng(seed)
    content[generator.integers(len(content))] = generator.integers(256)
    (tmp_path / "params.npz").write_bytes(content)
    with contextlib.suppress(InterbasisError):
        dictionaries.load(tmp_path)


class Exploding:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was opened",)


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "params.npz", W_enc=np.array([Exploding()], dtype=object))
    assert "numpy archive without pickles" in refusal(tmp_path)
    (tmp_path / "params.npz").write_bytes(pickle.dumps(Exploding()))
    assert "could not read" in refusal(tmp_path)
    (tmp_path / "params.npz").rename(tmp_path / "sae_weights.pt")
    assert "may be a pickle" in refusal(tmp_path)
    assert "may be a pickle" in refusal(tmp_path / "sae_weights.pt")


def test_paths_that_are_no_dictionary(tmp_path: Path) -> None:
    assert "there is nothing" in refusal(tmp_path / "no")
    assert "received an empty folder" in refusal(tmp_path)
    (tmp_path / "layers.3").mkdir()
    sparsify(tmp_path / "layers.3")
    assert "of its folders: layers.3" in refusal(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    assert "received notes.txt" in refusal(tmp_path / "notes.txt")


def test_transcoder_sets(tmp_path: Path) -> None:
    transcoder_set(tmp_path)
    assert "2 transcoders; choose one with layer, 0 to 1" in refusal(tmp_path)
    assert "no transcoder of layer 5" in refusal(tmp_path, layer=5)
    transcoders = dictionaries.TranscoderSet.from_folder(tmp_path)
    with pytest.raises(InterbasisError, match=f"no feature {FEATURES} in layer 0"):
        transcoders.encoder_rows(0, [1, FEATURES])
    with pytest.raises(InterbasisError, match="no feature -1"):
        transcoders.decoder_rows(0, [-1])
    assert "could not read the config" in refusal(transcoder_set(tmp_path, model_kind="[a"), layer=0)
    assert "expected k, the number" in refusal(transcoder_set(tmp_path, activation="topk"), layer=0)
    assert "received 'gelu'" in refusal(transcoder_set(tmp_path, activation="gelu"), layer=0)
    message = refusal(transcoder_set(tmp_path, activation="jumprelu"), layer=0)
    assert "expected a tensor activation_function.threshold" in message
    for file in tmp_path.glob("layer_*"):
        file.unlink()
    assert "expected layer_0.safetensors" in refusal(tmp_path, layer=0)


def test_cross_layer_transcoders(tmp_path: Path) -> None:
    message = refusal(transcoder_set(tmp_path, model_kind="cross_layer_transcoder"), layer=0)
    assert "cross-layer transcoder" in message


def test_arguments(tmp_path: Path) -> None:
    sae_lens(tmp_path)
    assert "positive scale" in refusal(tmp_path, scale=0.0)
    assert "gain of the norm beside" in refusal(tmp_path, bias=torch.ones(WIDTH))
    assert f"norm's gain with {WIDTH} numbers" in refusal(tmp_path, gain=torch.ones(WIDTH + 1))
    assert "gain without zeros" in refusal(tmp_path, gain=torch.zeros(WIDTH))
    sae_lens(tmp_path, normalize_activations="layer_norm")
    assert "scale of all activations" in refusal(tmp_path, scale=0.5)
    assert "rescales every token" in refusal(tmp_path, gain=torch.ones(WIDTH))


@pytest.mark.parametrize(("change", "reason"), [
    ({"threshold": -torch.ones(FEATURES)}, "negative activations"),
    ({"threshold": torch.ones(FEATURES), "active": 2}, "a threshold beside TopK"),
    ({"active": 2, "output_hook": "blocks.0.hook_mlp_out"}, "TopK in a transcoder"),
    ({"skip": torch.ones(WIDTH, WIDTH)}, "a skip to its own input"),
])  # fmt: skip
def test_what_sae_lens_cannot_hold_is_not_saved(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    values = tensors()
    dictionary = dictionaries.Dictionary(
        values["W_enc"].T, values["b_enc"], values["W_dec"], values["b_dec"], hook="mlp_in.0", **change
    )
    with pytest.raises(InterbasisError, match=reason):
        dictionaries.save(dictionary, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
