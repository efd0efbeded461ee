"""What models are read with: weight matrices, embeddings, a module's own outputs and its backward pass."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cases import normal
from interbasis.base.errors import InterbasisError
from interbasis.models.custom_backward import has_custom_backward
from interbasis.models.embedding import TokenEmbedding
from interbasis.models.matrices import changed_copy, changed_matrices
from interbasis.models.own_output import converted, own_output, parts_with_hooks


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2), nn.Dropout(0.5))


def test_weight_matrices_are_changed_and_nothing_else() -> None:
    module = small()
    before = copy.deepcopy(module.state_dict())
    seen = []
    changed = changed_copy(module, lambda matrix: seen.append(tuple(matrix.shape)) or -matrix)
    assert seen == [(4, 3), (2, 4)]
    for name, tensor in changed.state_dict().items():
        sign = -1 if name in ("0.weight", "3.weight") else 1
        assert torch.equal(tensor, sign * before[name])
        assert torch.equal(module.state_dict()[name], before[name])


def test_matrices_by_the_names_of_transformer_lens() -> None:
    weights = {name: normal(2, 2) for name in ("embed.W_E", "pos_embed.W_pos", "blocks.0.attn.W_Q", "b_Q")}
    changed = changed_matrices(weights, lambda matrix: 2 * matrix)
    assert [name for name in weights if not torch.equal(weights[name], changed[name])] == [
        "blocks.0.attn.W_Q"
    ]


def test_tied_embeddings_stay_and_odd_weights_are_refused() -> None:
    tied: Any = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    tied[1].weight = tied[0].weight
    assert torch.equal(changed_copy(tied, lambda matrix: 0 * matrix)[1].weight, tied[0].weight)
    with pytest.raises(InterbasisError, match=r"weight_ih_l0 of LSTM.*scrambles=0"):
        changed_copy(nn.LSTM(2, 2), lambda matrix: matrix)


def test_tokens_become_rows_with_a_constant() -> None:
    table, positions = normal(7, 3), normal(4, 3, seed=1)
    embedding = TokenEmbedding(table, positions, norm=nn.Tanh())
    tokens = torch.tensor([[6, 0, 2]])
    found = embedding(tokens)
    assert (found[..., 0] == 1).all()
    assert torch.equal(found[..., 1:], torch.tanh(table[tokens] + positions[:3]))
    for bad, reason in (
        (tokens.double(), r"float64 of shape \[1, 3\]"),
        (torch.zeros(1, 5, dtype=torch.long), r"at most 4 positions.*\[1, 5\]"),
        (tokens + 1, "0 and 6; received 1 to 7"),
    ):
        with pytest.raises(InterbasisError, match=reason):
            embedding(bad)


def test_a_module_computes_in_another_dtype_and_stays_as_it_was() -> None:
    module, x = small().train(), normal(5, 3)
    module[0].register_forward_hook(lambda part, inputs, output: output + 1)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    double = copy.deepcopy(module).double().eval()
    assert torch.equal(own_output(module, x, torch.float64), double(x))
    with converted(module, torch.float64):
        assert module[0].weight.dtype == torch.float64
    assert module[0].weight.dtype == torch.float32
    assert all(part.training for part in module.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert parts_with_hooks(module) == ["part '0'"]


class Straight(nn.Module):
    """Rounding whose backward pass is that of the identity."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (x.round() - x).detach()


def test_backward_passes_that_are_no_derivatives_are_seen() -> None:
    assert not has_custom_backward(small().eval(), normal(6, 3))
    assert has_custom_backward(
        nn.Sequential(nn.Linear(3, 3), Straight(), nn.Linear(3, 1)).eval(), normal(6, 3)
    )
    assert not has_custom_backward(nn.Sequential(nn.Embedding(5, 3), nn.Tanh()), torch.tensor([[0, 4, 2]]))
