"""The mean Fisher metric of the output, against all classes weighted by their probabilities."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import jacrev

from cases import Case, language_model, mlp, modular_addition
from interbasis.compute.executor import Executor
from interbasis.data.batches import Batches
from interbasis.dictionaries.fisher import FisherPass, fisher_grams
from interbasis.dictionaries.streams import StreamPlace
from interbasis.network.network import Network


def exact(network: Network, place: StreamPlace, inputs: Tensor) -> Tensor:  # [d, d]
    """Σ_s Σ_y p_s(y) g gᵀ at every token of the stream, averaged over tokens."""
    total, tokens = torch.zeros(place.width, place.width, dtype=torch.float64), 0
    for sample in inputs:
        f = network.activations_at(place.index, sample[None])

        def log_p(f: Tensor, sample: Tensor = sample) -> Tensor:  # [classes · positions]
            for section in network.sections[place.index :]:
                f = section(f)
            return network.finish(f, sample[None]).log_softmax(-1).flatten()

        gradients = jacrev(log_p)(f)[:, 0, :, place.columns]  # [outputs, T, d]
        weights = log_p(f).exp()
        total += torch.einsum("o,oti,otj->ij", weights, gradients, gradients)
        tokens += f.shape[1]
    return total / tokens


CASES: dict[str, tuple[Callable[[], Case], int]] = {
    "mlp": (lambda: mlp(torch.nn.GELU(), samples=12), 1),
    "modular addition": (lambda: modular_addition(samples=8), 1),
    "gpt2": (lambda: language_model("gpt2"), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_drawn_classes_average_to_all_classes(name: str) -> None:
    make, index = CASES[name]
    case = make()
    network, inputs = case.network, case.inputs[:4]
    place = StreamPlace.from_network(network, network.layers[index])
    expected = exact(network, place, inputs)
    drawn = []
    for seed in range(60):
        fisher = FisherPass(network, [place], seed=seed)
        drawn.append(fisher_grams(Executor(network).run(fisher, Batches(inputs)), [place])[place.layer])
    samples = torch.stack(drawn)
    error = samples.std(0) / len(samples) ** 0.5
    assert (samples.mean(0) - expected).norm() < 2 * error.norm()
    assert error.norm() < 0.3 * expected.norm()


@pytest.mark.parametrize("name", ["mlp", "modular addition"])
def test_every_class_in_turn_weighted_by_its_probability_is_exact(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, index = CASES[name]
    case = make()
    network, inputs = case.network, case.inputs[:1]
    place = StreamPlace.from_network(network, network.layers[index])
    total = torch.zeros(place.width, place.width, dtype=torch.float64)
    for number, weight in enumerate(network(inputs).softmax(-1).flatten()):
        monkeypatch.setattr(FisherPass, "_drawn", lambda self, p, first, y=number: p[..., 0].long() * 0 + y)
        fisher = FisherPass(network, [place])
        state = Executor(network).run(fisher, Batches(inputs))
        total += weight * fisher_grams(state, [place])[place.layer]
    expected = exact(network, place, inputs)
    assert (total - expected).abs().max() <= 1e-10 * expected.abs().max()


def test_layers_together_are_layers_alone() -> None:
    case = modular_addition()
    places = [StreamPlace.from_network(case.network, layer) for layer in ("mlp_in.0", "attn_in.0")]

    def grams(*chosen: StreamPlace) -> dict[str, Tensor]:
        return fisher_grams(
            Executor(case.network).run(FisherPass(case.network, chosen), Batches(case.inputs)), chosen
        )

    together = grams(*places)
    for place in places:
        torch.testing.assert_close(together[place.layer], grams(place)[place.layer], rtol=1e-12, atol=0)
