"""Dataset examples against a plain sort, and what they promise: memory, order, no duplicates."""

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import torch
from torch import Tensor

import interbasis
from cases import modular_addition, normal
from interbasis import features
from interbasis.analysis.features import activations
from interbasis.analysis.features.dataset_examples import ExampleSums, largest
from interbasis.analysis.features.records import Band, TokenExample

PLAN = features.ExamplePlan(ends=5, per_band=3, reservoir=64)
TOKENS = features.TokenRendering(before=3, after=2)


def stories(samples: int = 30, positions: int = 11, vocabulary: int = 4) -> torch.Tensor:
    """Few words and short contexts, so that contexts repeat."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, vocabulary, (samples, positions), generator=generator)


def source(tokens: torch.Tensor) -> torch.Tensor:
    """Three features: of the last two tokens (many ties), of the whole past, and of a hash of the past."""
    x = tokens.double()
    past = x.cumsum(1)
    shifted = torch.nn.functional.pad(x, (1, 0))[:, :-1]
    return torch.stack([x - shifted, past.sin(), (17.3 * past + 3 * x).cos()], dim=2)


def brute_force(
    tokens: torch.Tensor, feature: int, sign: int, ends: int, before: int, after: int
) -> list[tuple[int | float, int, int]]:
    """By the definition, place by place: the peaks of each sample, sorted, each context once."""
    values = sign * source(tokens)[:, :, feature]
    radius = max(before, after)
    peaks = []
    for i in range(len(tokens)):
        for t in range(tokens.shape[1]):
            near = range(max(0, t - radius), min(tokens.shape[1], t + radius + 1))
            if min((-values[i, u].item(), u) for u in near)[1] == t:
                context = tuple(tokens[i, max(0, t - before) : t + 1].tolist())
                context = (None,) * (before + 1 - len(context)) + context
                peaks.append((-values[i, t].item(), i, t, context))
    found: list[Any] = []
    seen = set()
    for value, i, t, context in sorted(peaks):
        if context not in seen and len(found) < ends:
            seen.add(context)
            found.append((sign * -value, i, t))
    return found


def places(band: Band) -> list[tuple[float, int, int]]:
    return [(e.value, e.sample, e.position) for e in band.examples]


@pytest.mark.parametrize("chunk", [10**6, 600, 1])
@pytest.mark.parametrize("vocabulary", [1, 2, 4])  # few words: contexts that repeat over and over
def test_extremes_are_those_of_a_plain_sort(
    monkeypatch: pytest.MonkeyPatch, chunk: int, vocabulary: int
) -> None:
    monkeypatch.setattr(activations, "CHUNK_BYTES", chunk)
    tokens = stories(vocabulary=vocabulary)
    found = features.examples(source, tokens, PLAN, TOKENS)
    assert found.kind == "tokens"
    for j, feature in enumerate(found.features):
        for band, sign in ((feature.bands[0], 1), (feature.bands[-1], -1)):
            expected = brute_force(tokens, j, sign, 5, 3, 2)
            assert [p[1:] for p in places(band)] == [p[1:] for p in expected]
            assert [p[0] for p in places(band)] == pytest.approx([p[0] for p in expected], rel=1e-5)


def test_chunks_and_batches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = stories(40)
    whole = features.examples(source, tokens, PLAN, TOKENS)
    monkeypatch.setattr(activations, "CHUNK_BYTES", 900)
    assert features.examples(source, list(tokens.split(7)), PLAN, TOKENS) == whole
    other = features.ExamplePlan(ends=5, per_band=3, reservoir=64, seed=1)
    assert features.examples(source, tokens, other, TOKENS) != whole


def test_bands_are_quantiles_and_hold_different_contexts() -> None:
    rows = normal(200, 3)
    plan = features.ExamplePlan(ends=2, bands=4, per_band=6, reservoir=500)  # holds all rows: exact
    ((feature, *_),) = [features.examples(lambda x: x, rows, plan).features]
    names = [band.name for band in feature.bands]
    assert names == ["most positive", "75–100 %", "50–75 %", "25–50 %", "0–25 %", "most negative"]
    edges = np.quantile(rows[:, 0].numpy(), [0, 0.25, 0.5, 0.75, 1])
    for band, low, high in zip(feature.bands[1:-1], edges[3::-1], edges[:0:-1], strict=True):
        values = [example.value for example in band.examples]
        assert len(values) == 6
        assert values == sorted(values, reverse=True)
        assert all(low - 1e-5 <= value <= high + 1e-5 for value in values)


def test_the_sample_behind_the_bands_is_uniform() -> None:
    values = torch.arange(20000, dtype=torch.float64)[:, None]
    found = ExampleSums(features.ExamplePlan(reservoir=2000))
    for chunk in activations.chunks(lambda x: x, values):
        found.add(chunk)
    _, reservoir = found.held
    assert len(reservoir.values) == 2000
    assert reservoir.values.mean().item() == pytest.approx(10000, abs=4 * 20000 / 12**0.5 / 2000**0.5)
    tenths = torch.bincount((reservoir.values.flatten() // 2000).long(), minlength=10)
    assert tenths.min() > 150
    assert tenths.max() < 250


def test_equal_samples_count_once() -> None:
    rows = torch.tensor([[3.0], [3.0], [2.0], [3.0], [1.0]])
    (feature,) = features.examples(lambda x: x, rows, features.ExamplePlan(ends=4)).features
    top = [(e.value, e.sample) for e in feature.bands[0].examples]
    assert top == [(3.0, 0), (2.0, 2), (1.0, 4)]


def memory_bound(plan: features.ExamplePlan, width: int, window: int, sample_bytes: int) -> int:
    """Upper bound of the bytes that are held between chunks, however long the data are."""
    entry = 3 * 8 + 4 * window
    ends = 2 * plan.ends * width
    reservoir = plan.reservoir * (3 * 8 + width * (8 + 4 * window))
    return ends * entry + reservoir + (ends + plan.reservoir) * sample_bytes


def held_bytes(sums: ExampleSums) -> int:
    """Bytes held between chunks."""
    ends, reservoir = map(vars, sums.held)
    tensors = [*ends.values(), *reservoir.values(), *(inputs for inputs, _ in sums.samples.values())]
    return sum(tensor.nbytes for tensor in tensors)


def test_memory_is_bounded_and_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "CHUNK_BYTES", 2000)
    tokens = stories(400, 16, 50)
    found, held = ExampleSums(PLAN, TOKENS), []
    bound = memory_bound(PLAN, width=3, window=6, sample_bytes=8 * 16)
    for chunk in activations.chunks(source, tokens):
        found.add(chunk)
        held.append(held_bytes(found))
        assert held_bytes(found) <= bound
    assert max(held[len(held) // 2 :]) <= 1.3 * max(held[: len(held) // 2])


def test_surroundings_and_the_active_token() -> None:
    tokens = torch.arange(20).view(1, 20)
    (feature,) = features.examples(
        lambda x: -(x.double() - 7).abs()[..., None], tokens, features.ExamplePlan(ends=1), TOKENS
    ).features
    (example,) = feature.bands[0].examples
    assert example == TokenExample(
        value=0.0, sample=0, position=7, tokens=("4", "5", "6", "7", "8", "9"),
        activations=(-3.0, -2.0, -1.0, 0.0, -1.0, -2.0), active=3,
    )  # fmt: skip


def test_a_layer_of_the_last_position_marks_the_last_token() -> None:
    case = modular_addition()
    layer = interbasis.build(case.network, case.inputs, edge_method=None).graph.layers[1]
    found = features.examples(
        features.FeatureReader(case.network, layer), case.inputs, features.ExamplePlan(ends=2)
    )
    example = found.features[1].bands[0].examples[0]
    assert (example.position, example.active) == (2, 2)
    assert example.activations[:2] == (0.0, 0.0)
    assert example.activations[2] == pytest.approx(example.value, rel=1e-4)
    x, y, _ = case.inputs[example.sample].tolist()
    assert example.tokens == (str(x), str(y), "7")


def test_images_are_pictures() -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (6, 3, 4, 5), generator=generator)
    rows = pixels.flatten(1) / 127.5 - 1
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    found = features.examples(
        lambda x: x[:, :2], (rows, labels), features.ExamplePlan(ends=6),
        features.ImageRendering((3, 4, 5), ("cat", "ship")), labelled=True,
    )  # fmt: skip
    assert found.kind == "images"
    for example in found.features[0].bands[0].examples:
        assert example.label == ("cat", "ship")[example.sample % 2]
        data = base64.b64decode(example.image.removeprefix("data:image/png;base64,"))
        picture = matplotlib.image.imread(io.BytesIO(data), format="png")  # [4, 5, 3] in 0 … 1
        expected = pixels[example.sample].permute(1, 2, 0).numpy() / 255
        assert np.abs(picture - expected).max() < 1e-6


def test_the_largest_go_by_order_where_equal() -> None:
    values = torch.tensor([[1.0, 5], [3, 5], [3, 5], [2, 5], [3, 5]])
    assert largest(values, 2).T.tolist() == [[1, 2], [0, 1]]
    assert largest(values, 9).T.tolist() == [[1, 2, 4, 3, 0], [0, 1, 2, 3, 4]]


def test_bad_plans_are_refused() -> None:
    with pytest.raises(interbasis.InterbasisError, match="at least one example"):
        features.ExamplePlan(ends=0)
    with pytest.raises(interbasis.InterbasisError, match="expected images of"):
        features.examples(lambda x: x, torch.zeros(2, 5), None, features.ImageRendering((3, 1, 1)))


def hooked(model: Any, layer: int) -> Callable[..., Tensor]:
    """All coordinates of the stream that enters a block, by a plain forward hook."""
    caught: list[torch.Tensor] = []
    model.transformer.h = model.transformer.h[: layer + 1]  # what comes later is not needed
    model.transformer.h[layer].register_forward_pre_hook(lambda module, args: caught.append(args[0]))

    @torch.no_grad()
    def run(tokens: torch.Tensor) -> torch.Tensor:
        caught.clear()
        for some in tokens.split(8):
            model.transformer(some)
        return torch.cat(caught)

    return run


@pytest.mark.parametrize("windows", [160, pytest.param(782, marks=pytest.mark.slow)])
def test_a_language_model_in_one_pass(shared: Path, tmp_path: Path, windows: int) -> None:
    """All 64 coordinates of one layer over windows of 256 tokens; twice, the same bytes; memory bounded."""
    transformers = pytest.importorskip("transformers")
    folder = shared / "tinystories-gpt-280k"
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    tokens = torch.from_numpy(
        np.fromfile(folder / "tokens_test.uint16", np.uint16)[: 256 * windows].astype(np.int64)
    )
    windows = tokens.view(windows, 256)
    run, passes, seen = hooked(model, 2), [], 0

    def counted(inputs: Tensor) -> Tensor:
        nonlocal seen
        seen += inputs.numel()
        return run(inputs)

    plan, rendering = features.ExamplePlan(), features.TokenRendering()
    for name in ("first", "second"):
        seen, found = 0, ExampleSums(plan, rendering)
        for chunk in activations.chunks(counted, windows):
            found.add(chunk)
            assert held_bytes(found) <= memory_bound(plan, 64, 19, 8 * 256)
        assert seen == windows.numel() + 256  # one pass, and one sample to learn the shape
        (tmp_path / name).write_text(json.dumps([one.model_dump() for one in found.result()]))
        passes.append(found)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    values = run(windows[:64]).double()
    small = features.examples(run, windows[:64], plan, rendering).features
    for j in (0, 17, 63):
        peak = values[:, :, j].flatten().argmax().item()
        top = small[j].bands[0].examples[0]
        assert (top.sample, top.position) == divmod(peak, 256)
        contexts = [tuple(e.tokens[: e.active + 1]) for e in small[j].bands[0].examples]
        assert len(set(contexts)) == len(contexts) == 8


def test_a_resumed_pass_over_documents_of_different_lengths() -> None:
    """Documents of one token among longer ones; what is held between chunks goes through its state."""
    tokens, lengths = stories(), [11, 1, 1, 4, 7, 2] * 5
    whole, resumed = ExampleSums(PLAN, TOKENS), ExampleSums(PLAN, TOKENS)
    for k, length in enumerate(lengths):
        inputs = tokens[k : k + 1, :length]
        chunk = activations.FeatureChunk(k, inputs, None, source(inputs))
        whole.add(chunk)
        again = ExampleSums(PLAN, TOKENS)
        again.restore(resumed.state())
        again.add(chunk)
        resumed = again
    assert resumed.result() == whole.result()
    shown = [one for feature in whole.result() for band in feature.bands for one in band.examples]
    assert {len(one.tokens) for one in shown} >= {1, 2, 3}
    for one in shown:
        values = source(tokens)[one.sample, one.position].tolist()
        assert any(one.value == pytest.approx(value, abs=1e-5) for value in values)
        assert one.position < lengths[one.sample]
