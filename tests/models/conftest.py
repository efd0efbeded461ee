"""What tests of models share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def all_in_float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """transformers rounds norms, angles and softmax to float32; here its code computes them in float64."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    yield
    torch.set_default_dtype(default)
