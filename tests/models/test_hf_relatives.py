"""What is odd about single Hugging Face families: positions, norms, tables, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from interbasis import InterbasisError, build, from_hf, from_torch
from reference import relative_error

pytest.importorskip("transformers")

from tiny_models import configs, random_model, tokens


@pytest.mark.parametrize("name", ["codegen", "gptj"])
def test_tables_of_positions_in_half_precision(name: str, tmp_path: Path) -> None:
    """from_pretrained keeps them in float32; a model that was converted as a whole computes with others."""
    model = random_model(name, torch.bfloat16)
    with pytest.raises(InterbasisError, match=r"rotary positions.*torch\.bfloat16.*from_pretrained"):
        from_hf(model)
    model.save_pretrained(tmp_path / "model")
    with torch.no_grad():
        fresh = random_model(name, torch.float32)
        fresh.load_state_dict({key: value.float() for key, value in model.state_dict().items()})
        assert relative_error(from_hf(tmp_path / "model")(tokens()), fresh(tokens()).logits) <= 1e-5


@pytest.mark.parametrize("name", ["llama-dynamic", "phi3-long", "ministral3", "gptj"])
def test_positions_that_change_with_the_length_hold_up_to_a_context(name: str, all_in_float64: None) -> None:
    """There the model has other frequencies, multiplies its queries, or has no positions at all."""
    model = random_model(name)
    with torch.no_grad():
        if name != "gptj":
            model(tokens(1, 20))  # after which a model holds other frequencies until it is called again
        network = from_hf(model)
        assert relative_error(network(tokens(2, 16)), model(tokens(2, 16)).logits) <= 1e-9
    with pytest.raises(InterbasisError, match=r"at most 16 positions.*context=16"):
        network(tokens(2, 17))


def test_clipped_queries_and_biases_of_scores_are_named() -> None:
    import transformers as t

    clipped, biased = configs()["olmo"], configs()["falcon"]
    clipped.clip_qkv, biased.alibi = 8.0, True
    for config, name in ((clipped, "clip_qkv"), (biased, "alibi")):
        with pytest.raises(InterbasisError, match=f"config.{name}.*not supported.*General"):
            from_hf(t.AutoModelForCausalLM.from_config(config))


def test_norms_of_all_heads_together_hold_no_coordinates_for_what_fills_them_up() -> None:
    """4 heads of queries are normed as one, 2 of keys as one; before them there is no norm."""
    network = from_hf(random_model("olmo2"))
    assert network.layers[:5] == ["attn_in.0", "heads.0", "post1.0", "post1_out.0", "post1_add.0"]
    f = dict(zip(network.layers, network.activations(tokens()), strict=True))["heads.0"]
    assert f.shape[-1] == 1 + 16 + 8 + 8 + 16
    assert (f[..., 1:17].square().mean(-1) - 1).abs().max() <= 1e-3
    assert (f[..., 17:25].square().mean(-1) - 2).abs().max() <= 1e-3  # multiplied by √(16 / 8)
    graph = build(network, tokens(12)).graph
    assert all(edges.isfinite().all() for edges in graph.edges)


def test_branches_that_share_a_norm_read_it_once() -> None:
    network = from_hf(random_model("gptj"))
    assert network.layers[:5] == ["ln1.0", "ln1_out.0", "attn_in.0", "mlp_in.0", "ln1.1"]
    f = dict(zip(network.layers, network.activations(tokens()), strict=True))
    assert torch.equal(f["mlp_in.0"][..., 1:17], f["attn_in.0"][..., 1:17])


def test_a_causal_model_by_the_general_path() -> None:
    """It returns keys and values for later use beside its logits, and is left as it was."""
    model = random_model("falcon")
    network = from_torch(model, tokens(2, 6), output="logits")
    with torch.no_grad():
        assert relative_error(network(tokens(2, 6)), model(tokens(2, 6)).logits) <= 1e-6
    assert model.config.use_cache


def broken(folder: Path, kind: str) -> Path:
    """A folder with a small model in it, of which something is wrong."""
    random_model("llama", torch.float32).save_pretrained(folder)
    file = folder / "model.safetensors"
    if kind == "cut off":
        file.write_bytes(file.read_bytes()[:2000])
    elif kind == "incomplete":
        kept = {name: value for name, value in load_file(file).items() if "layers.1.mlp" not in name}
        save_file(kept, file, metadata={"format": "pt"})
    elif kind == "code in a pickle":
        file.unlink()
        torch.save({"model.norm.weight": WritesFile(folder / "written")}, folder / "pytorch_model.bin")
    else:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if kind == "quantised":
            config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
        else:
            config["model_type"] = "something_else"
            config["auto_map"] = {"AutoConfig": "configuration_else.ElseConfig"}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


class WritesFile:
    """Whoever unpickles this runs what it says."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("cut off", r"could not load .*header"),
        ("incomplete", r"no weights for model\.layers\.1\.mlp\.down_proj\.\w+ and \d more"),
        ("code in a pickle", r"in a pickle that holds more than tensors"),
        ("quantised", r"could not load .*GPTQ"),
        ("code of its own", r"needs code of its own, which interbasis does not run"),
    ],
)
def test_folders_that_cannot_be_loaded_are_refused_in_one_sentence(
    kind: str, message: str, tmp_path: Path
) -> None:
    """Weights that are not there would be random ones; code is neither run nor asked about."""
    folder = broken(tmp_path / "model", kind)
    with pytest.raises(InterbasisError, match=message) as caught:
        from_hf(folder)
    assert "\n" not in str(caught.value)
    assert not (folder / "written").exists()


def test_a_pickle_of_tensors_and_files_in_parts_are_read(tmp_path: Path) -> None:
    model = random_model("llama", torch.float32)
    model.save_pretrained(tmp_path / "pickle")
    (tmp_path / "pickle" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pickle" / "pytorch_model.bin")
    model.save_pretrained(tmp_path / "parts", max_shard_size="4KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    for folder in ("pickle", "parts"):
        with torch.no_grad():
            assert relative_error(from_hf(tmp_path / folder)(tokens()), model(tokens()).logits) <= 1e-5
