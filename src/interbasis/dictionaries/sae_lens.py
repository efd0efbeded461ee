"""Dictionaries of SAELens: folders with `cfg.json` and `sae_weights.safetensors`.

    standard                      z = ReLU(u)
    topk                          the k largest u, if positive
    jumprelu                      z = ReLU(u) where u > θ
    gated                         z = ReLU(e^r ∘ W_e x + b_mag) where W_e x + b_gate > 0
    batchtopk, matryoshka         while they are trained; stored for use as jumprelu, and read as that here
    (jumprelu_)(skip_)transcoder  reads one hook, is decoded to another; with a skip from input to output

W_enc is [d_in, features] there, W_dec [features, d_out]. Files since version 3 are read: older configs have
the same fields outside of `metadata`.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.base.files import make_folder, write_atomically, write_text_atomically
from interbasis.base.version import VERSION
from interbasis.dictionaries.dictionary import Dictionary, Scaling
from interbasis.dictionaries.files import FileConfig, Tensors, digest, read_config
from interbasis.dictionaries.folds import multiply_by_decoder_norm, scale_input, subtract_decoder_bias
from interbasis.dictionaries.places import MLP_OUTPUT

CONFIG = "cfg.json"
WEIGHTS = "sae_weights.safetensors"
SCALER = "activation_scaler.json"
"""Beside a checkpoint of a training that is not finished: the scale that is not folded yet."""

PER_TOKEN: Mapping[str, Scaling] = {"layer_norm": "layer_norm", "constant_norm_rescale": "constant_norm"}
AUTOENCODERS = (
    "standard", "topk", "jumprelu", "gated", "batchtopk", "matryoshka_batchtopk",
)  # fmt: skip
TRANSCODERS = ("transcoder", "skip_transcoder", "jumprelu_transcoder", "jumprelu_skip_transcoder")
FINE_TUNING = ("scaling_factor", "finetuning_scaling_factor")
"""Factors of activations when they are decoded, in versions 3 to 5."""
FORMAT_VERSION = "6.0.0"
"""Of SAELens, whose format is written."""


class Metadata(FileConfig):
    """What a dictionary was trained on."""

    name: str | None = None
    model_name: str | None = None
    hook_name: str | None = None
    hook_name_out: str | None = None
    hook_head_index: int | None = None


class ActivationArguments(FileConfig):
    """Arguments of an activation function, before version 6."""

    k: int | None = None


class SAELensConfig(Metadata):
    """The fields of `cfg.json` that a dictionary needs; before version 6 the metadata are among them."""

    architecture: str = "standard"
    d_in: int = Field(ge=1)
    d_sae: int = Field(ge=1)
    d_out: int | None = Field(default=None, ge=1)
    k: int | None = None
    apply_b_dec_to_input: bool = True
    rescale_acts_by_decoder_norm: bool = False
    normalize_activations: str | bool | None = None
    reshape_activations: str = "none"
    activation_fn: str | None = None
    activation_fn_str: str | None = None
    activation_fn_kwargs: ActivationArguments | None = None
    hook_point: str | None = None
    metadata: Metadata | None = None


class Scaler(FileConfig):
    """Scale of the activations of a training."""

    scaling_factor: float | None = None


def read(folder: Path, dtype: torch.dtype | None = None, scale: float | None = None) -> Dictionary:
    """Read a dictionary of SAELens.

    Args:
        folder: With its config and weights.
        dtype: Of its tensors; by default that of the file, float32 at least.
        scale: Factor of the activations in training, where the file does not have it.

    Returns:
        The dictionary.

    Raises:
        InterbasisError: It is incomplete, or has no form here.
    """
    config = read_config(folder / CONFIG, SAELensConfig)
    architecture, active = _architecture(config, folder)
    tensors = Tensors.read(folder / WEIGHTS, dtype)
    scaling, scale = _normalisation(config, architecture, folder, scale)
    dictionary = replace(_matrices(tensors, config, architecture), active=active, scaling=scaling)
    if scale is not None:
        dictionary = scale_input(dictionary, scale)
        if config.rescale_acts_by_decoder_norm and dictionary.threshold is not None:
            dictionary = replace(dictionary, threshold=dictionary.threshold / scale)
    if config.rescale_acts_by_decoder_norm:
        dictionary = multiply_by_decoder_norm(dictionary)
    if config.apply_b_dec_to_input and architecture not in TRANSCODERS:
        dictionary = subtract_decoder_bias(dictionary)
    metadata = config.metadata or config
    return replace(
        dictionary,
        hook=metadata.hook_name or config.hook_name or config.hook_point or "",
        output_hook=metadata.hook_name_out or MLP_OUTPUT if architecture in TRANSCODERS else "",
        name=metadata.name or folder.absolute().name,
        model=metadata.model_name or "",
        digest=digest(tensors.path, folder / CONFIG),
    )


def _architecture(config: SAELensConfig, folder: Path) -> tuple[str, int | None]:
    """The architecture, and k of TopK; before version 6 TopK is an activation function."""
    architecture, k = config.architecture, config.k
    function = config.activation_fn or config.activation_fn_str or "relu"
    if function == "topk":
        architecture = "topk"
        k = k or (config.activation_fn_kwargs.k if config.activation_fn_kwargs else None)
    if architecture not in AUTOENCODERS + TRANSCODERS or function not in ("relu", "topk"):
        received = architecture if function in ("relu", "topk") else f"{architecture} with {function}"
        raise InterbasisError(
            f"expected a dictionary of SAELens that is {', '.join(AUTOENCODERS + TRANSCODERS)}, received "
            f"{received} in {folder}, which is not pre-activations where they are active; choose another "
            "dictionary of its layer"
        )
    if config.reshape_activations == "hook_z":
        raise InterbasisError(
            f"{folder} is a dictionary of hook_z, the heads' values before they are written to the residual "
            "stream, which are no node layer; choose one of the attention's output or of the residual stream"
        )
    metadata = config.metadata or config
    if metadata.hook_head_index is not None:
        raise InterbasisError(
            f"{folder} is a dictionary of head {metadata.hook_head_index} alone, which is no node layer; "
            "choose one of the attention's output or of the residual stream"
        )
    if architecture != "topk":
        return architecture, None
    if k is None or not 1 <= k <= config.d_sae:
        raise InterbasisError(
            f"expected k from 1 to {config.d_sae}, the number of features, in {folder / CONFIG}, "
            f"received {k}; download or copy it again"
        )
    return architecture, k


def _normalisation(
    config: SAELensConfig, architecture: str, folder: Path, scale: float | None
) -> tuple[Scaling, float | None]:
    """Rescaling of every token, or a scale for all of them, which is folded."""
    setting = config.normalize_activations
    if isinstance(setting, bool):
        setting = "expected_average_only_in" if setting else "none"
    if setting in (None, "none"):
        return "none", scale
    if setting == "expected_average_only_in":
        if scale is None and (folder / SCALER).is_file():
            scale = read_config(folder / SCALER, Scaler).scaling_factor
        if scale is None:
            raise InterbasisError(
                f"{folder} was trained on activations times a factor that is not in its files "
                "(normalize_activations is expected_average_only_in); pass it as scale, √d_in over their "
                "mean norm, or 1 if the weights are folded already"
            )
        return "none", scale
    if setting in PER_TOKEN:
        if architecture in TRANSCODERS:
            raise InterbasisError(
                f"{folder} is a transcoder that rescales every token ({setting}), which has no form here; "
                "choose one that reads activations as they are"
            )
        if scale is not None:
            raise InterbasisError(
                f"{folder} rescales every token ({setting}), so that a scale of all activations does "
                "nothing; load it without the scale"
            )
        return PER_TOKEN[setting], None
    raise InterbasisError(
        "expected activations that are normalised by none, expected_average_only_in, "
        f"{' or '.join(PER_TOKEN)}, received {setting} in {folder / CONFIG}; fold it in SAELens and save the "
        "dictionary again"
    )


def _matrices(tensors: Tensors, config: SAELensConfig, architecture: str) -> Dictionary:
    """Encoder, decoder and thresholds as the file has them, transposed."""
    features, width = config.d_sae, config.d_in
    width_out = (config.d_out or width) if architecture in TRANSCODERS else width
    encoder = tensors.take("W_enc", width, features).T.contiguous()
    decoder = tensors.take("W_dec", features, width_out)
    for name in FINE_TUNING:
        if name in tensors:
            decoder = decoder * tensors.take(name, features)[:, None]
    threshold = None
    if architecture == "gated":
        growth, bias = tensors.take("r_mag", features).exp(), tensors.take("b_mag", features)
        encoder = encoder * growth[:, None]
        threshold = (bias - tensors.take("b_gate", features) * growth).clamp(min=0)
    else:
        bias = tensors.take("b_enc", features)
    if architecture.startswith("jumprelu"):
        threshold = _threshold(tensors, features)
    elif architecture in ("batchtopk", "matryoshka_batchtopk"):
        threshold = tensors.threshold("topk_threshold", features).clamp(min=0)
    skip = tensors.take("W_skip", width_out, width) if "skip" in architecture else None
    return Dictionary(encoder, bias, decoder, tensors.take("b_dec", width_out), threshold, skip=skip)


def _threshold(tensors: Tensors, features: int) -> Tensor:
    """θ of JumpReLU, of which some checkpoints have the logarithm; a ReLU comes first."""
    if "threshold" not in tensors and "log_threshold" in tensors:
        return tensors.threshold("log_threshold", features).exp()
    return tensors.threshold("threshold", features).clamp(min=0)


def save(dictionary: Dictionary, folder: str | Path) -> Path:
    """Write a dictionary in SAELens' format, so that SAELens and `load` read it.

    Args:
        dictionary: The dictionary.
        folder: The folder to write `cfg.json` and `sae_weights.safetensors` to; made if it is not there.

    Returns:
        The folder.

    Raises:
        InterbasisError: SAELens has no such dictionary, or the folder cannot be written to.
    """
    folder = Path(folder)
    architecture = _written_architecture(dictionary)
    features, width = dictionary.encoder.shape
    config: dict[str, object] = {
        "architecture": architecture,
        "d_in": width,
        "d_sae": features,
        "dtype": str(dictionary.encoder.dtype).removeprefix("torch."),
        "device": "cpu",
        "apply_b_dec_to_input": False,
        "normalize_activations": {ours: theirs for theirs, ours in PER_TOKEN.items()}.get(
            dictionary.scaling, "none"
        ),
        "reshape_activations": "none",
        "metadata": {
            "sae_lens_version": FORMAT_VERSION,
            "interbasis_version": VERSION,
            "name": dictionary.name,
            "model_name": dictionary.model or None,
            "hook_name": dictionary.hook or None,
            "hook_name_out": dictionary.output_hook or None,
        },
    }
    tensors = {
        "W_enc": dictionary.encoder.T,
        "b_enc": dictionary.encoder_bias,
        "W_dec": dictionary.decoder,
        "b_dec": dictionary.decoder_bias,
    }
    if dictionary.is_transcoder:
        config["d_out"] = dictionary.decoder.shape[1]
    if dictionary.active is not None:
        config |= {"k": dictionary.active, "rescale_acts_by_decoder_norm": False}
    if dictionary.threshold is not None:
        tensors["threshold"] = dictionary.threshold
    if dictionary.skip is not None:
        tensors["W_skip"] = dictionary.skip
    make_folder(folder)
    written = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(folder / WEIGHTS, lambda path: save_file(written, path))
    write_text_atomically(folder / CONFIG, json.dumps(config, indent=2))
    return folder


def _written_architecture(dictionary: Dictionary) -> str:
    """What SAELens calls a dictionary of this form."""
    threshold, active = dictionary.threshold, dictionary.active
    unwritable = {
        "negative activations": threshold is not None and bool((threshold < 0).any()),
        "a threshold beside TopK": threshold is not None and active is not None,
        "TopK in a transcoder": active is not None and dictionary.is_transcoder,
        "a skip to its own input": dictionary.skip is not None and not dictionary.is_transcoder,
    }
    for reason, found in unwritable.items():
        if found:
            raise InterbasisError(
                f"SAELens' format has no dictionary with {reason}; keep the files that it was loaded from"
            )
    if active is not None:
        return "topk"
    jump = threshold is not None
    if not dictionary.is_transcoder:
        return "jumprelu" if jump else "standard"
    parts = ("jumprelu", jump), ("skip", dictionary.skip is not None), ("transcoder", True)
    return "_".join(part for part, present in parts if present)
