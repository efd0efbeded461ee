"""Whatever the user calls data."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from cases import normal
from interbasis import InterbasisError, modadd
from interbasis.data import Batches

X, Y = normal(23, 4), torch.arange(23)


@pytest.mark.parametrize(
    "data",
    [X, (X, Y), [X], list(X.split(5)), [(X[:7], Y[:7]), (X[7:], Y[7:])], X.numpy(),
     TensorDataset(X, Y), DataLoader(TensorDataset(X, Y), batch_size=4), [[X[:3], Y[:3]], [X[3:], Y[3:]]]],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 6, 23, 100])
def test_every_kind_of_data_gives_the_same_samples_in_chunks_of_any_size(data: Any, size: int) -> None:
    batches = Batches(data)
    chunks = list(batches.chunks(size))
    assert len(batches) == 23
    assert torch.equal(torch.cat([inputs for _, inputs in chunks]), X)
    assert [first for first, _ in chunks] == list(range(0, 23, size))
    assert all(len(inputs) == size for _, inputs in chunks[:-1])
    assert batches.fingerprint() == Batches(X).fingerprint()
    assert torch.equal(batches.first(), X[:1])


def test_a_part_of_the_data_knows_its_place_in_the_whole() -> None:
    assert [first for first, _ in Batches(X[:9], offset=14).chunks(4)] == [14, 18, 22]


def test_loaders_that_do_not_keep_the_order_are_known() -> None:
    dataset = TensorDataset(X, Y)
    assert not Batches(DataLoader(dataset)).shuffled
    assert Batches(DataLoader(dataset, shuffle=True)).shuffled
    assert Batches(DataLoader(dataset, sampler=WeightedRandomSampler([1.0] * 23, 23))).shuffled


def test_other_data_have_another_fingerprint() -> None:
    assert Batches(X).fingerprint() != Batches(X + 1e-16 + X.abs()).fingerprint()
    assert Batches(X).fingerprint() != Batches(X.float()).fingerprint()
    assert Batches(X).fingerprint() != Batches(X.view(23, 2, 2)).fingerprint()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((x for x in [X]), "convert a generator to a list"),
        (X[:0], "is empty"),
        ([], "is empty"),
        ((X, Y, Y), "two tensors"),
        (["text"], "a batch is a tensor"),
        (7, "received int"),
        ([X, Y], "as a tuple"),
        ([X[:3], X[3:].float()], "are followed by"),
    ],
)
def test_data_of_no_use_are_refused(data: Any, message: str) -> None:
    with pytest.raises(InterbasisError, match=message):
        len(Batches(data))


def test_modular_addition_is_split_as_in_the_paper() -> None:
    train, test = modadd.split()
    assert (len(train.labels), len(test.labels)) == (3830, 8939)
    numbers: Any = range(12769)
    order = torch.utils.data.random_split(numbers, [3830, 8939], torch.Generator().manual_seed(0))[0].indices
    x, y = np.divmod(np.array(order), 113)
    assert np.array_equal(train.inputs.numpy(), np.stack([x, y, np.full_like(x, 113)], axis=1))
    assert torch.equal((train.inputs[:, 0] + train.inputs[:, 1]) % 113, train.labels)
    together = torch.cat([train.inputs, test.inputs])
    assert len(together.unique(dim=0)) == 12769
    with pytest.raises(InterbasisError, match="between 0 and 1"):
        modadd.split(fraction=1.5)
    for arguments in ({"p": 1}, {"p": 5, "fraction": 0.01}):
        with pytest.raises(InterbasisError, match="no training or no test"):
            modadd.split(**arguments)
