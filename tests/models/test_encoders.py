"""Encoders of Hugging Face from random configurations: outputs, heads, lengths, the real MiniLM."""

from pathlib import Path

import pytest
import torch

from cases import as_general, gram_error, normal
from interbasis import InterbasisError, build, from_hf, from_torch
from interbasis.data.samples import Samples
from interbasis.models.hf.encoders import Head
from interbasis.models.hf.picture_tower import PictureTower
from interbasis.models.hf.tiny import randomise
from interbasis.network.cores import General, Linear, PositionScale
from interbasis.network.stencil_section import StencilSection
from interbasis.numerics.integration import rule
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
def test_outputs_are_the_models_own(name: str) -> None:
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


def test_padding_counts_nowhere() -> None:
    """A padded batch with a mask gives, at its real tokens, what the same tokens give alone."""
    torch.manual_seed(0)
    model = CASES["masked tokens"]().double().eval()
    network = from_hf(model)
    tokens, mask = torch.randint(2, 30, (2, 6)), torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    expected = model(tokens, attention_mask=mask).logits
    assert relative_error(network(tokens[:1, :4]), expected[:1, :4]) <= 1e-9
    padded = Samples(2, lambda a, b: (tokens[a:b], tokens[a:b]), "tokens", lengths=torch.tensor([4, 6]))
    graph = build(network, padded, edge_method=None).graph
    other = Samples(2, lambda a, b: (tokens[a:b] * mask[a:b], tokens[a:b]), "tokens", lengths=padded.lengths)
    again = build(network, other, edge_method=None).graph  # other numbers in the padding
    for one, two in zip(graph.layers, again.layers, strict=True):
        assert torch.equal(one.eigenvalues, two.eigenvalues)


@pytest.mark.parametrize("head", ["mean", "pooled", "tokens"])
def test_heads(head: Head) -> None:
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


T5 = {
    "d_model": 12, "d_kv": 4, "d_ff": 20, "num_layers": 1, "num_heads": 3, "vocab_size": 30,
    "decoder_start_token_id": 0,
}  # fmt: skip
WHISPER = {
    "d_model": 12, "encoder_layers": 1, "encoder_attention_heads": 3, "encoder_ffn_dim": 20,
    "num_mel_bins": 8, "max_source_positions": 6, "vocab_size": 30, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip


VISION = {
    "CLIP": lambda: transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**IMAGES)),
    "SigLIP": lambda: transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**IMAGES)),
    "DINOv2": lambda: transformers.Dinov2Model(transformers.Dinov2Config(**IMAGES)),
    "DINOv3": lambda: transformers.DINOv3ViTModel(
        transformers.DINOv3ViTConfig(**IMAGES, num_register_tokens=2, rope_theta=3.0)
    ),
    "Whisper": lambda: transformers.WhisperModel(transformers.WhisperConfig(**WHISPER)).get_encoder(),
}
"""Towers that take pictures [n, 3, 8, 8], and an encoder of mel features [n, 8, 12]."""


QUICK = ("DINOv3", "Whisper")
"""Those of `make test`; `make slow` has the others."""


def random_tower(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return randomise(VISION[name]()).double().eval()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in VISION]
)
def test_vision_towers_and_whisper_in_closed_form(name: str) -> None:
    """Outputs are transformers' own; Jacobian Grams and attributions of all sections are autograd's."""
    model = random_tower(name)
    network, inputs = from_hf(model), normal(3, *((8, 12) if name == "Whisper" else (3, 8, 8)))
    assert not any(isinstance(section.core, General) for section in network.sections)
    with torch.no_grad():
        assert relative_error(network(inputs), model(inputs).last_hidden_state) <= 1e-9
    scaled = [section for section in network.sections if isinstance(section.core, PositionScale)]
    assert len(scaled) == {"DINOv3": 2, "Whisper": 1}.get(name, 0)
    for section, f in zip(network.sections, network.activations(inputs), strict=False):
        if isinstance(section, StencilSection):
            continue  # tests/lib/test_stencils.py
        assert gram_error(section, f) <= 1e-10
        if not isinstance(section.core, Linear):
            arguments = section.read_outs(f), f, section.read, section.outputs(f), rule("quadrature", 2)
            found, expected = (s.core.attributions(*arguments) for s in (section, as_general(section)))
            assert relative_error(found, expected) <= 1e-10


def qwen_tower() -> torch.nn.Module:
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

    config = Qwen2VLVisionConfig(
        depth=1, embed_dim=16, hidden_size=12, num_heads=2, mlp_ratio=2, patch_size=4, rope_theta=5.0
    )
    torch.manual_seed(0)
    return randomise(Qwen2VisionTransformerPretrainedModel(config)).double().eval()


def test_towers_that_take_patches_of_pictures_in_a_row(all_in_float64: None) -> None:
    """Against the tower's own forward pass, picture by picture, its patches cut out one after the other."""
    tower, pictures = qwen_tower(), normal(3, 3, 16, 24)
    network = from_torch(PictureTower(tower), pictures[:2])
    assert sum(isinstance(section.core, PositionScale) for section in network.sections) == 2
    assert not any(isinstance(section.core, General) for section in network.sections)
    corners = [
        (8 * a + 4 * c, 8 * b + 4 * d) for a in range(2) for b in range(3) for c in (0, 1) for d in (0, 1)
    ]
    for picture, found in zip(pictures, network(pictures), strict=True):
        patches = [picture[:, None, y : y + 4, x : x + 4].expand(-1, 2, -1, -1).flatten() for y, x in corners]
        with torch.no_grad():
            own = tower(torch.stack(patches), grid_thw=torch.tensor([[1, 4, 6]])).last_hidden_state
        assert relative_error(found, own) <= 1e-9
    for section, f in zip(network.sections, network.activations(pictures[:1]), strict=False):
        assert gram_error(section, f) <= 1e-10
    with pytest.raises(InterbasisError, match=r"pictures of any size.*from_torch"):
        from_hf(tower)


@pytest.mark.slow
def test_labelled_features_and_a_trace_of_pictures() -> None:
    """From a tower and pictures to a graph, descriptions of its features, and a trace."""
    network = from_hf(random_tower("DINOv3"))
    run = build(network.between(network.layers[:7]), normal(40, 3, 8, 8, seed=4))
    assert all(edges.isfinite().all() for edges in run.graph.edges)
    assert run.features().layers
    assert run.trace(sample=0, checks=1, method="gradient").trace.nodes


@pytest.mark.slow
def test_the_encoder_of_t5() -> None:
    torch.manual_seed(0)
    model = transformers.T5EncoderModel(transformers.T5Config(**T5)).double().eval()
    network, tokens = from_hf(model), torch.randint(2, 30, (3, 8))
    # its norms round to float32 themselves
    assert relative_error(network(tokens), model(tokens).last_hidden_state) <= 1e-6


def test_models_with_a_decoder_are_refused() -> None:
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5))
    with pytest.raises(
        InterbasisError,
        match=r"only encoders are supported; .*model\.get_encoder\(\)",
    ):
        from_hf(model)


@pytest.mark.slow
def test_minilm(real_model: "object") -> None:
    folder: Path = real_model("minilm")
    model = transformers.AutoModel.from_pretrained(folder).double().eval()
    tokens = torch.randint(1000, 9000, (2, 12))
    assert relative_error(from_hf(folder)(tokens), model(tokens).last_hidden_state) <= 1e-9
