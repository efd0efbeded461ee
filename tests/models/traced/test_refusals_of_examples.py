"""Examples and data of a wrong shape: one sentence, with what the module itself says."""

import pytest
import torch
from torch import Tensor, nn

import interbasis


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def test_an_example_that_the_module_refuses(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(interbasis.InterbasisError) as refused:
        interbasis.from_torch(Rows(), torch.rand(4, 63))
    assert str(refused.value).startswith("Rows does not take the example, of shape [4, 63]: ")
    assert "mat1 and mat2" in str(refused.value)
    assert str(refused.value).endswith("expected a batch of its inputs, [samples, …]")
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__
    assert "Traceback" not in capfd.readouterr().err


def test_data_of_another_width_than_the_example() -> None:
    network = interbasis.from_torch(Rows(), torch.rand(4, 64))
    expected = r"expected inputs of shape \[samples, 64\], like the example, received \[1, 63\]"
    with pytest.raises(interbasis.InterbasisError, match=expected):
        interbasis.build(network, torch.rand(10, 63), progress=False)
