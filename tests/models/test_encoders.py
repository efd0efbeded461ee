"""Encoders of Hugging Face from random configurations: outputs, heads, lengths, the real MiniLM."""

from pathlib import Path

import pytest
import torch

from interbasis import build, from_hf
from interbasis.data.samples import Samples
from interbasis.network.cores import General
from reference import relative_error

transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "vocab_size": 30,
}
IMAGES = {**SMALL, "image_size": 8, "patch_size": 4}
IMAGES.pop("vocab_size")
CASES = {
    "masked tokens": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SMALL)),
    "classes": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL)),
    "RoBERTa": lambda: transformers.RobertaForMaskedLM(
        transformers.RobertaConfig(**SMALL, max_position_embeddings=40)
    ),
    "ViT": lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**IMAGES)),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_the_models_own(name):
    torch.manual_seed(0)
    model = CASES[name]().double().eval()
    network = from_hf(model)
    assert not any(isinstance(section.core, General) for section in network.sections)
    if name == "ViT":
        images = torch.randn(3, 3, 8, 8, dtype=torch.float64)
        assert relative_error(network(images), model(images).logits) <= 1e-9
        return
    for length in (5, 9):  # any length
        tokens = torch.randint(2, 30, (3, length))
        assert relative_error(network(tokens), model(tokens).logits) <= 1e-9


def test_padding_counts_nowhere():
    """A padded batch with a mask gives, at its real tokens, what the same tokens give alone."""
    torch.manual_seed(0)
    model = CASES["masked tokens"]().double().eval()
    network = from_hf(model)
    tokens, mask = torch.randint(2, 30, (2, 6)), torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    expected = model(tokens, attention_mask=mask).logits
    assert relative_error(network(tokens[:1, :4]), expected[:1, :4]) <= 1e-9
    padded = Samples(2, lambda a, b: (tokens[a:b], tokens[a:b]), "tokens", lengths=torch.tensor([4, 6]))
    graph = build(network, padded, edge_method=None)
    other = Samples(2, lambda a, b: (tokens[a:b] * mask[a:b], tokens[a:b]), "tokens", lengths=padded.lengths)
    again = build(network, other, edge_method=None)  # other numbers in the padding
    for one, two in zip(graph.layers, again.layers, strict=True):
        assert torch.equal(one.eigenvalues, two.eigenvalues)


@pytest.mark.parametrize("head", ["mean", "pooled", "tokens"])
def test_heads(head):
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**SMALL)).double().eval()
    network, tokens = from_hf(model, head=head), torch.randint(2, 30, (3, 7))
    states = model(tokens)
    expected = {
        "mean": states.last_hidden_state.mean(1),
        "pooled": states.pooler_output,
        "tokens": states.last_hidden_state,
    }
    assert relative_error(network(tokens), expected[head]) <= 1e-9


@pytest.mark.slow
def test_minilm(real_model: "object"):
    folder: Path = real_model("minilm")  # type: ignore[operator]
    model = transformers.AutoModel.from_pretrained(folder).double().eval()
    tokens = torch.randint(1000, 9000, (2, 12))
    assert relative_error(from_hf(folder)(tokens), model(tokens).last_hidden_state) <= 1e-9
