"""Files that sae-lens and eai-sparsify write themselves, and what these packages encode and decode from them.

`make dictionaries` runs this in an environment that has both; elsewhere it is skipped.
"""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from interbasis import InterbasisError, dictionaries

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    sae_lens = pytest.importorskip("sae_lens", reason="sae-lens is not installed: make dictionaries")
    sparsify = pytest.importorskip("sparsify", reason="eai-sparsify is not installed: make dictionaries")
    from sae_lens.registry import SAE_CLASS_REGISTRY, SAE_TRAINING_CLASS_REGISTRY

pytestmark = pytest.mark.filterwarnings("ignore")

WIDTH, FEATURES, TOKENS = 24, 96, 200
TOLERANCE = 1e-6  # of the largest value, in float32
TRANSCODERS = ("transcoder", "skip_transcoder", "jumprelu_transcoder", "jumprelu_skip_transcoder")
NO_FORM_HERE = {"abstopk", "temporal", "matching_pursuit"}


def randomise(module: nn.Module, seed: int = 0) -> None:
    """Numbers of realistic sizes for every parameter; thresholds of which some are negative."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        size = parameter.shape[-1] ** -0.5 if parameter.ndim == 2 else 0.3
        parameter.data = size * noise + (0.2 if name == "threshold" else 0.0)
    for name, buffer in module.named_buffers():
        if name == "topk_threshold":
            buffer.fill_(0.37)


def activations(seed: int = 1) -> Tensor:
    return 2 * torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed)) + 0.5


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert (theirs != 0).float().mean() > 0.01
    assert float((ours - theirs).abs().max() / theirs.abs().max()) <= TOLERANCE


def autoencoder(architecture: str, **settings: Any) -> Any:
    kind, config = SAE_CLASS_REGISTRY[architecture]
    if architecture in TRANSCODERS:
        settings = {"d_out": 16, "apply_b_dec_to_input": False} | settings
    settings["metadata"] = sae_lens.saes.sae.SAEMetadata(
        hook_name="blocks.3.hook_resid_pre", hook_name_out="blocks.3.hook_mlp_out", model_name="tiny"
    )
    sae = kind(config(d_in=WIDTH, d_sae=FEATURES, **settings))
    randomise(sae)
    return sae


CASES = [
    ("standard", {}),
    ("standard", {"apply_b_dec_to_input": False}),
    ("standard", {"normalize_activations": "layer_norm"}),
    ("standard", {"normalize_activations": "constant_norm_rescale"}),
    ("gated", {}),
    ("gated", {"apply_b_dec_to_input": False}),
    ("gated", {"normalize_activations": "layer_norm"}),
    ("topk", {"k": 7}),
    ("topk", {"k": 7, "rescale_acts_by_decoder_norm": True}),
    ("topk", {"k": 80, "apply_b_dec_to_input": False}),
    ("topk", {"k": 7, "normalize_activations": "constant_norm_rescale"}),
    ("jumprelu", {}),
    ("jumprelu", {"apply_b_dec_to_input": False}),
    ("jumprelu", {"normalize_activations": "layer_norm"}),
    *((architecture, {}) for architecture in TRANSCODERS),
]


@pytest.mark.parametrize(("architecture", "settings"), CASES)
def test_sae_lens(architecture: str, settings: dict[str, Any], tmp_path: Path) -> None:
    sae = autoencoder(architecture, **settings)
    sae.save_model(tmp_path / "sae")
    ours, x = dictionaries.load(tmp_path / "sae"), activations()
    with torch.no_grad():
        assert_close(ours.encode(x), sae.encode(x))
        assert_close(ours.reconstruct(x), sae(x))
        if ours.scaling == "none":
            z = sae.encode(x)
            assert_close(ours.decode(z), sae.decode(z))
    assert ours.hook == "blocks.3.hook_resid_pre"
    assert ours.is_transcoder == (architecture in TRANSCODERS)
    assert ours.encoder.dtype == torch.float32


@pytest.mark.parametrize("architecture", sorted(set(SAE_TRAINING_CLASS_REGISTRY) - NO_FORM_HERE))
def test_checkpoints_and_inference_models_of_trainings(architecture: str, tmp_path: Path) -> None:
    kind, config = SAE_TRAINING_CLASS_REGISTRY[architecture]
    settings: dict[str, Any] = (
        {"k": 7, "rescale_acts_by_decoder_norm": True} if "topk" in architecture else {}
    )
    if "matryoshka" in architecture:
        settings["matryoshka_widths"] = [FEATURES // 2, FEATURES]
    training = kind(config(d_in=WIDTH, d_sae=FEATURES, **settings))
    randomise(training)
    training.save_model(tmp_path / "checkpoint")
    training.save_inference_model(tmp_path / "inference")
    inference, x = sae_lens.SAE.load_from_disk(tmp_path / "inference"), activations()
    for folder in ("checkpoint", "inference"):
        ours = dictionaries.load(tmp_path / folder)
        with torch.no_grad():
            assert_close(ours.encode(x), inference.encode(x))
            assert_close(ours.reconstruct(x), inference(x))


@pytest.mark.parametrize(("architecture", "settings"), [
    ("standard", {}), ("gated", {}), ("jumprelu", {}),
    ("topk", {"rescale_acts_by_decoder_norm": True, "k": 5}),
])  # fmt: skip
@pytest.mark.parametrize("in_a_file", [True, False])
def test_scale_of_the_activations(
    architecture: str, settings: dict[str, int], in_a_file: bool, tmp_path: Path
) -> None:
    sae = autoencoder(architecture, normalize_activations="expected_average_only_in", **settings)
    sae.save_model(tmp_path)
    if in_a_file:
        (tmp_path / "activation_scaler.json").write_text(json.dumps({"scaling_factor": 0.4}))
        ours = dictionaries.load(tmp_path)
    else:
        ours = dictionaries.load(tmp_path, scale=0.4)
    sae.fold_activation_norm_scaling_factor(0.4)
    x = activations()
    with torch.no_grad():
        assert_close(ours.encode(x), sae.encode(x))
        assert_close(ours.reconstruct(x), sae(x))


@pytest.mark.parametrize("architecture", sorted(NO_FORM_HERE))
def test_architectures_without_a_form_are_refused(architecture: str, tmp_path: Path) -> None:
    config = SAE_CLASS_REGISTRY[architecture][1](d_in=WIDTH, d_sae=FEATURES).to_dict()
    (tmp_path / "cfg.json").write_text(json.dumps(config))
    (tmp_path / "sae_weights.safetensors").write_bytes(b"")
    with pytest.raises(InterbasisError, match=f"received {architecture} in"):
        dictionaries.load(tmp_path)


def test_every_architecture_is_read_or_refused() -> None:
    known = {architecture for architecture, _ in CASES}
    assert set(SAE_CLASS_REGISTRY) == known | NO_FORM_HERE


FORMS = [
    {}, {"threshold": 0.3}, {"active": 6}, {"scaling": "layer_norm"}, {"scaling": "constant_norm"},
    {"output_hook": "blocks.3.hook_mlp_out"}, {"output_hook": "blocks.3.hook_mlp_out", "skip": True},
    {"output_hook": "blocks.3.hook_mlp_out", "skip": True, "threshold": 0.3},
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_sae_lens_reads_what_is_saved(form: dict[str, Any], tmp_path: Path) -> None:
    form, generator = dict(form), torch.Generator().manual_seed(3)
    dictionary = dictionaries.Dictionary(
        encoder=torch.randn(FEATURES, WIDTH, generator=generator) * WIDTH**-0.5,
        encoder_bias=torch.randn(FEATURES, generator=generator),
        decoder=torch.randn(FEATURES, WIDTH, generator=generator) * FEATURES**-0.5,
        decoder_bias=torch.randn(WIDTH, generator=generator),
        skip=torch.randn(WIDTH, WIDTH, generator=generator) if form.pop("skip", False) else None,
        threshold=torch.full((FEATURES,), form.pop("threshold")) if "threshold" in form else None,
        hook="blocks.3.hook_resid_pre",
    )
    dictionary = replace(dictionary, **form)
    sae = sae_lens.SAE.load_from_disk(dictionaries.save(dictionary, tmp_path))
    x = activations()
    with torch.no_grad():
        assert_close(dictionary.encode(x), sae.encode(x))
        assert_close(dictionary.reconstruct(x), sae(x))
    assert sae.cfg.metadata.hook_name == dictionary.hook


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("transcode", [False, True])
@pytest.mark.parametrize("latents", [0, 70])
def test_sparsify(skip: bool, transcode: bool, latents: int, tmp_path: Path) -> None:
    config = sparsify.SparseCoderConfig(
        expansion_factor=4, num_latents=latents, k=6, transcode=transcode, skip_connection=skip
    )
    coder = sparsify.SparseCoder(WIDTH, config)
    randomise(coder)
    folder: Path = tmp_path / "layers.3.mlp"
    coder.save_to_disk(folder)
    ours, x = dictionaries.load(folder), activations()
    with torch.no_grad():
        encoded = coder.encode(x)
        theirs = torch.zeros(TOKENS, coder.num_latents).scatter_(-1, encoded.top_indices, encoded.top_acts)
        assert_close(ours.encode(x), theirs)
        assert_close(ours.decode(theirs), coder.decode(encoded.top_acts, encoded.top_indices))
        assert_close(ours.reconstruct(x), coder(x, y=x).sae_out)
    assert ours.features == (latents or 4 * WIDTH)
    assert ours.is_transcoder == transcode


def test_groupmax_of_sparsify_is_refused(tmp_path: Path) -> None:
    coder = sparsify.SparseCoder(
        WIDTH, sparsify.SparseCoderConfig(expansion_factor=4, k=6, activation="groupmax")
    )
    coder.save_to_disk(tmp_path / "layers.0")
    with pytest.raises(InterbasisError, match="received groupmax"):
        dictionaries.load(tmp_path / "layers.0")
