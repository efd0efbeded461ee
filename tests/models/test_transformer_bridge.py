"""A TransformerBridge, which TransformerLens 4 has in place of the HookedTransformer, as a network."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from interbasis import InterbasisError, from_hf
from interbasis.analysis.ablation.controls import shuffled
from tiny_models import SMALL, random_model, tokens

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("transformer_lens", reason="TransformerLens is not installed")
    bridges = pytest.importorskip(
        "transformer_lens.model_bridge", reason="this TransformerLens is too old for a TransformerBridge"
    )

pytestmark = pytest.mark.filterwarnings("ignore")


def bridge(name: str, folder: Path) -> Any:
    """Booted from a folder with a model and a tokenizer, as nothing can be downloaded here."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(SMALL["vocab_size"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="w0", eos_token="w1").save_pretrained(folder)
    model = random_model(name)
    model.save_pretrained(folder)
    boot = bridges.TransformerBridge.boot_transformers
    return boot(str(folder), hf_model=model, dtype=torch.float64, device="cpu")


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama", "gemma2", "qwen2"])
def test_a_bridge_is_its_hugging_face_model(name: str, tmp_path: Path) -> None:
    network = from_hf(bridge(name, tmp_path))
    expected = from_hf(random_model(name))
    assert network.layers == expected.layers
    assert torch.equal(network(tokens()), expected(tokens()))
    assert network.fingerprint() == expected.fingerprint()


def test_compatibility_mode_is_refused_by_name(tmp_path: Path) -> None:
    model = bridge("gpt2", tmp_path)
    model.enable_compatibility_mode()
    with pytest.raises(InterbasisError, match="compatibility mode"):
        from_hf(model)


def test_scrambled_weights_are_those_of_the_hugging_face_model(tmp_path: Path) -> None:
    network = shuffled(from_hf(bridge("llama", tmp_path)), 5)
    assert torch.equal(network(tokens()), shuffled(from_hf(random_model("llama")), 5)(tokens()))
