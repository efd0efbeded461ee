"""Blocks of language models with random weights, larger than at initialisation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.models.hf.load import from_hf
from interbasis.network.network import Network

VOCABULARY = 1000


@dataclass(frozen=True)
class Shape:
    """Blocks of GPT-2's kind, or of Llama's with ``key_heads``."""

    width: int
    hidden: int
    heads: int
    key_heads: int | None = None
    blocks: int = 1
    positions: int = 256
    samples: int = 8
    base: float = 10_000.0
    """Base of the frequencies of rotary positions."""

    @property
    def tokens(self) -> int:
        return self.samples * self.positions

    def network(self) -> Network:
        """The blocks alone: the ends of the cut are the first and the last node layer."""
        import transformers

        small = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 1}
        torch.manual_seed(0)
        model: torch.nn.Module
        if self.key_heads is None:
            config = transformers.GPT2Config(
                n_embd=self.width, n_inner=self.hidden, n_head=self.heads, n_layer=self.blocks,
                n_positions=max(8, self.positions), **small,
            )  # fmt: skip
            model = transformers.GPT2LMHeadModel(config)
        else:
            llama = transformers.LlamaConfig(
                hidden_size=self.width, intermediate_size=self.hidden, num_attention_heads=self.heads,
                num_key_value_heads=self.key_heads, num_hidden_layers=self.blocks, rope_theta=self.base,
                **small,
            )  # fmt: skip
            model = transformers.LlamaForCausalLM(llama)
        with torch.no_grad():
            for parameter in model.eval().parameters():
                if parameter.ndim > 1:
                    parameter.mul_(2)
        return from_hf(model, f"0-{self.blocks - 1}")

    def data(self) -> Tensor:  # [samples, positions]
        generator = torch.Generator().manual_seed(1)
        return torch.randint(0, VOCABULARY, (self.samples, self.positions), generator=generator)


QUICK = {
    "gpt2-like": Shape(128, 512, 4, positions=128, samples=8),
    "llama-like": Shape(128, 384, 4, 2, positions=128, samples=8),
}
FULL = {
    "GPT2-small": Shape(768, 3072, 12, positions=1024, samples=4),
    "SmolLM2-135M": Shape(576, 1536, 9, 3, positions=1024, samples=4, base=100_000.0),
    "Llama-1B": Shape(2048, 8192, 32, 8, positions=256, samples=4, base=500_000.0),
}
"""One block each."""
