"""Is a sparse Jacobian between dictionaries learnt? Pairs around an MLP, on trained and scrambled networks.

    python benchmarks/dictionary_penalty.py MODEL-FOLDER --out FOLDER [--blocks 2] [--weights 0,1,4]
        [--seeds 3] [--features 512] [--active 8] [--steps 1000] [--windows 800]

Dictionaries of `mlp_in.k` and `ln1.k+1` are trained together, with a penalty on the mean |J| of active
features (Farnik et al. 2025), on the model, on it with shuffled weights, and on one with redrawn weights.
On test windows each pair has

    explained      share of the variance that each dictionary explains
    divergence     KL(network || network with both streams replaced), in nats; each network against itself
    per token      entries of a token's J that carry 90 % of its Σ A², of active × active; A_ij = J_ij z_j
    pairs          pairs of features that carry 90 % of Σ Ê², Ê² the mean of A² over tokens; of features²

Every job is a file of FOLDER/penalty; the same command resumes. ``--table`` prints results.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import torch
from torch import Tensor

import interbasis
from dictionaries import TEST_WINDOWS, claim_job, windows
from interbasis.analysis.ablation.controls import reinitialised, shuffled
from interbasis.base.files import write_text_atomically
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.jacobian_penalty import PointwiseMap
from interbasis.dictionaries.metrics import metric_matrix
from interbasis.dictionaries.settings import TrainSettings
from interbasis.dictionaries.streams import StreamPlace
from interbasis.dictionaries.training import fit_pair
from interbasis.network.network import Network
from interbasis.network.replacement import replaced_output

CONTROLS = {"trained": lambda network: network, "shuffled": shuffled, "redrawn": reinitialised}
CARRIED = 0.9


def streams(network: Network, places: list[StreamPlace], tokens: Tensor) -> list[Tensor]:
    """Activations of the places, [tokens, d] each."""
    parts: list[list[Tensor]] = [[] for _ in places]
    for chunk in tokens.split(40):
        for part, place in zip(parts, places, strict=True):
            part.append(network.activations_at(place.index, chunk)[..., place.columns].flatten(0, 1).float())
    return [torch.cat(part) for part in parts]


def carrying(squares: Tensor) -> Tensor:  # [..., n] -> [...]
    """Fewest entries that carry `CARRIED` of the sum."""
    ordered = squares.sort(-1, descending=True).values.cumsum(-1)
    return (ordered < CARRIED * ordered[..., -1:]).sum(-1) + 1


def sparsity(section: PointwiseMap, pair: tuple[Dictionary, Dictionary], x: list[Tensor]) -> dict[str, float]:
    """How few entries of the Jacobian carry the attributions, per token and over all of them."""
    source, target = pair
    active = source.active or 0, target.active or 0
    squares = torch.zeros(target.features * source.features, dtype=torch.float64)
    entries = []
    for first, second in zip(*(rows.split(2048) for rows in x), strict=True):
        z, i = source.encode(first).topk(active[0])
        j = target.encode(second).topk(active[1]).indices
        slope, _ = section.slopes(source.reconstruct(first))
        Q, R = (target.encoder @ section.write)[j], (source.decoder @ section.read.T)[i]
        J = (Q * slope[:, None]) @ R.mT + target.encoder[j] @ (source.decoder @ section.skip.T)[i].mT
        A2 = (J * z[:, None]).double().square()  # [tokens, k′, k]
        entries.append(carrying(A2.flatten(1)))
        squares.index_add_(0, (j[:, :, None] * source.features + i[:, None]).flatten(), A2.flatten())
    return {
        "per_token": torch.cat(entries).double().mean().item(), "entries": active[0] * active[1],
        "pairs": int(carrying(squares)), "possible": len(squares),
    }  # fmt: skip


def divergence(
    network: Network, places: list[StreamPlace], pair: tuple[Dictionary, Dictionary], tokens: Tensor
) -> float:
    """Mean KL divergence over positions when both streams are replaced."""
    total = 0.0
    for chunk in tokens.split(20):
        f = network.activations_at(places[0].index, chunk)

        def replace(k: int, f: Tensor) -> Tensor:
            columns = places[k].columns
            x = f[..., columns]
            return torch.cat([f[..., : columns.start], pair[k].reconstruct(x), f[..., columns.stop :]], -1)

        replacements = {place.index: lambda f, k=k: replace(k, f) for k, place in enumerate(places)}
        own = replaced_output(network, places[0].index, f, chunk, {}).log_softmax(-1)
        changed = replaced_output(network, places[0].index, f, chunk, replacements).log_softmax(-1)
        total += (own.exp() * (own - changed)).sum().item()
    return total / tokens.numel()


@torch.no_grad()
def job(options: argparse.Namespace, kind: str, block: int, weight: float, seed: int) -> dict[str, object]:
    network = CONTROLS[kind](interbasis.from_hf(options.model))
    places = [StreamPlace.from_network(network, name) for name in (f"mlp_in.{block}", f"ln1.{block + 1}")]
    train = windows(Path(options.model), "train", options.windows)
    test = windows(Path(options.model), "test", TEST_WINDOWS)
    x, unseen = streams(network, places, train), streams(network, places, test)
    section = PointwiseMap.from_network(network, *places)
    settings = TrainSettings(features=options.features, active=options.active, steps=options.steps, seed=seed)
    covariances = [torch.cov(rows.T.double()) for rows in x]
    metrics = [metric_matrix("raw", torch.eye(len(C), dtype=torch.float64), C) for C in covariances]
    began = time.process_time()
    pair = fit_pair((x[0], x[1]), (metrics[0], metrics[1]), section, settings, weight)
    seconds = time.process_time() - began
    explained = []
    for dictionary, rows in zip(pair, unseen, strict=True):
        error = (rows - dictionary.reconstruct(rows)).square().sum()
        explained.append(1 - (error / (rows - rows.mean(0)).square().sum()).item())
    return {
        "kind": kind, "block": block, "weight": weight, "seed": seed, "seconds": round(seconds, 1),
        "explained": explained, "divergence": divergence(network, places, pair, test),
    } | sparsity(section, pair, unseen)  # fmt: skip


def table(folder: Path) -> None:
    rows = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    key = lambda row: (row["block"], row["weight"], row["kind"])  # noqa: E731
    for (block, weight, kind), group in itertools.groupby(sorted(rows, key=key), key):
        found = list(group)
        cells = []
        for name in ("divergence", "per_token", "pairs"):
            values = torch.tensor([row[name] for row in found], dtype=torch.float64)
            cells.append(f"{name} {values.mean():.3f} ({values.min():.3f} to {values.max():.3f})")
        explained = torch.tensor([row["explained"] for row in found]).mean(0)
        cells.append("explained " + " / ".join(f"{share:.3f}" for share in explained.tolist()))
        print(f"block {block}, weight {weight:g}, {kind}: {', '.join(cells)}, {len(found)} seeds")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--out", required=True)
    parser.add_argument("--blocks", default="2")
    parser.add_argument("--weights", default="0,1,4")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--active", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--windows", type=int, default=800)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(options.out) / "penalty"
    if options.table:
        table(folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    chosen = map(int, options.blocks.split(",")), map(float, options.weights.split(","))
    for seed, block, weight, kind in itertools.product(range(options.seeds), *chosen, CONTROLS):
        file = folder / f"{kind}-{block}-{weight:g}-{seed}.json"
        claim = file.with_suffix(".working")
        if file.exists() or not claim_job(claim):
            continue
        try:
            write_text_atomically(file, json.dumps(job(options, kind, block, weight, seed)) + "\n")
        finally:
            claim.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
