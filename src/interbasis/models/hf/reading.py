"""Models of a folder or a Hub id: their configuration, their weights, and errors in their files."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from torch import nn

from interbasis.base.connection import hub_is_out_of_reach
from interbasis.base.errors import InterbasisError, first_line
from interbasis.base.lazy import optional_import
from interbasis.base.memory import collecting_later
from interbasis.models.hf.encoders import is_encoder
from interbasis.models.hf.families import FAMILIES
from interbasis.models.hf.stored import parameters_without_memory

SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
"""Settings that are whole numbers of at least 1 in every family."""
MAX_REASON = 200
"""Characters of somebody else's message that are repeated."""


@collecting_later()
def load(name: str) -> nn.Module:
    """Load the model of a folder or a Hub id, with all of its weights."""
    config = load_config(name)
    import transformers
    from transformers import AutoModelForCausalLM

    try:
        local = Path(name).is_dir() or hub_is_out_of_reach()
        named = (getattr(config, "architectures", None) or [""])[0]
        causal = config.model_type in FAMILIES and not getattr(config, "is_encoder_decoder", False)
        kind = AutoModelForCausalLM if causal else getattr(transformers, named, None)
        model, loading = (kind or AutoModelForCausalLM).from_pretrained(
            name, dtype="auto", local_files_only=local, trust_remote_code=False, output_loading_info=True
        )
    except Exception as error:  # whatever files may cause in somebody else's code
        raise _unreadable(name, error) from error
    missing = sorted(loading["missing_keys"])  # which transformers draws at random
    if missing and (language_config(config).model_type in FAMILIES or not is_encoder(model)):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InterbasisError(
            f"{name} has no weights for {missing[0]}{more}; expected a folder that holds all weights of the "
            "model that its config.json describes"
        )
    return language_model(model)


def load_config(name: str) -> Any:
    """Load the configuration of a folder or a Hub id."""
    folder = Path(name)
    if (folder.exists() or name.startswith((".", "/", "~"))) and not (folder / "config.json").is_file():
        raise InterbasisError(
            f"expected a Hugging Face model's folder with a config.json, but {name} has none"
        )
    transformers = optional_import("transformers", "Hugging Face models need the package transformers")
    try:
        local = folder.is_dir() or _only_cached(name)
        config = transformers.AutoConfig.from_pretrained(
            name, local_files_only=local, trust_remote_code=False
        )
    except Exception as error:  # whatever files may cause in somebody else's code
        raise _unreadable(name, error) from error
    inner = language_config(config)
    for setting in SIZES if inner.model_type in FAMILIES else ():
        value = getattr(inner, setting, None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            written = inner.attribute_map.get(setting, setting)
            raise InterbasisError(
                f"config.json of {name} has {written} = {value!r}, expected a whole number of at least 1"
            )
    return config


def _only_cached(name: str) -> bool:
    """Whether a Hub id must be read from the cache; refused at once if it is not there."""
    if not hub_is_out_of_reach():
        return False
    from huggingface_hub import try_to_load_from_cache

    if not isinstance(try_to_load_from_cache(name, "config.json"), str):
        raise OSError("the Hub is out of reach and its cache on this machine does not hold it")
    return True


def local_folder(name: str) -> Path:
    """Folder of a model's files; those of a Hub id are downloaded."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    try:
        patterns, local = ["*.safetensors", "*.json"], hub_is_out_of_reach()
        return Path(snapshot_download(name, allow_patterns=patterns, local_files_only=local))
    except (OSError, ValueError, RuntimeError) as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> InterbasisError:
    reason = first_line(error)
    reason = reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]}…"
    if isinstance(error, UnpicklingError):
        return InterbasisError(
            f"{name} has weights in a pickle that holds more than tensors, which is not loaded because it "
            "could run any code; expected safetensors, or a pickle of tensors alone"
        )
    if "trust_remote_code" in str(error):
        return InterbasisError(
            f"{name} needs code of its own, which interbasis does not run; load the model in Python and pass "
            "it to interbasis.from_hf, if it is of a supported type, or to interbasis.from_torch"
        )
    return InterbasisError(
        f"could not load {name!r} as a Hugging Face causal language model ({reason}); give a folder with "
        "config.json and weights, or a Hub id while there is a network connection"
    )


def context_length(name: str) -> int | None:
    """Number of positions that the model of a folder or a Hub id was trained for, where it says that."""
    config = language_config(load_config(name))
    positions = getattr(config, "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None


def skeleton(config: Any) -> Any:
    """Model of a configuration, without weights."""
    from transformers import AutoModelForCausalLM

    try:
        with parameters_without_memory():
            return AutoModelForCausalLM.from_config(config).eval()
    except Exception as error:  # whatever settings may cause in somebody else's code
        raise _unreadable(config.name_or_path or config.model_type, error) from error


def language_config(config: Any) -> Any:
    """Configuration of the language model in one that takes images as well; of other models their own."""
    text = getattr(config, "text_config", None)
    return text if getattr(text, "model_type", None) in FAMILIES else config


def language_model(model: nn.Module) -> nn.Module:
    """Language model in one that takes images as well, as a model of its own; others unchanged."""
    config: Any = getattr(model, "config", None)
    inner = getattr(getattr(model, "model", None), "language_model", None)
    if language_config(config) is config or inner is None or not hasattr(model, "lm_head"):
        return model
    text = skeleton(config.text_config)
    text.model, text.lm_head = inner, model.lm_head
    return text
