"""Checkpoints in half precision: blocks are converted as they run, and give what a copy in float32 gives."""

from pathlib import Path

import pytest
import torch

from interbasis import build, from_hf
from interbasis.network.stored_section import StoredSection
from reference import relative_error

pytest.importorskip("transformers")

from interbasis.models.hf.tiny import tiny_model, tiny_tokens


@pytest.mark.parametrize("kind", ["llama", "bart", "gpt_oss"])
def test_a_folder_in_half_precision_is_converted_block_by_block(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    tiny_model(kind, torch.bfloat16).save_pretrained(tmp_path)
    network = from_hf(tmp_path)
    assert all(isinstance(section, StoredSection) for section in network.sections[:-2])
    whole = from_hf(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))
    assert network.dtype == whole.dtype == torch.float32
    assert relative_error(network(tiny_tokens()), whole(tiny_tokens())) <= 1e-6
    assert network.fingerprint() == whole.fingerprint()
    graphs = [build(each, tiny_tokens(), basis="lib").graph for each in (network, whole)]
    for mine, theirs in zip(graphs[0].edges, graphs[1].edges, strict=True):
        assert torch.equal(mine, theirs)
