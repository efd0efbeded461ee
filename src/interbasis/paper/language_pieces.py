"""One piece of a reproduction on a language model: a run in one basis, built, ablated, described.

Every stage is stored in the run as it ends and goes on where it was killed: the graph, `ablation`,
`together`, `features` and `examples`, and last `reproduction`, which says that the piece is finished.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from interbasis.ablation.evaluation import Evaluation
from interbasis.data.batches import Batches
from interbasis.data.samples import Samples, Split
from interbasis.features.analysis import Request, analyse
from interbasis.features.examples import Plan as ExamplePlan
from interbasis.features.names import renderings
from interbasis.fit.build import build
from interbasis.network.network import Network
from interbasis.paper import language_measures as measures
from interbasis.paper.language_plan import LanguagePlan
from interbasis.paper.language_times import TIMES, Clock
from interbasis.paper.pieces import NAME, check_same_build
from interbasis.run.ablate import AblationRequest, ablate_run
from interbasis.run.opened import OpenRun, open_run
from interbasis.run.request import make_request
from interbasis.run.results import load_result, load_tensors, save_result
from interbasis.run.specs import Model, first_of, open_model
from interbasis.run.summary import summarise
from interbasis.runtime.checkpoints import Checkpoints
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.literals import Basis
from interbasis.runtime.progress import Progress, silent

DESCRIBED = 16
"""Features of each layer that are described."""
LOOKED_AT = 65_536
"""Tokens of the training set that features are described from, at most."""
TOGETHER = "together"
CENTRAL = ("attention", "MLP")
"""The sections that the paper's claims are about."""


def finished(plan: LanguagePlan, basis: str) -> dict[str, Any] | None:
    """What a finished piece holds; None where it is not finished, or was with another depth."""
    folder = plan.folder(basis)
    if not (folder / "config.json").is_file():
        return None
    found = load_result(folder, NAME)
    return found if found and found["depth"] == plan.depth else None


def do_piece(plan: LanguagePlan, basis: Basis, progress: Progress = silent) -> dict[str, Any]:
    """Build, ablate and describe; what is finished already is taken as it is."""
    clock = Clock()
    if build_run(plan, basis, progress):
        clock.stop(plan.folder(basis), "build")
    there = finished(plan, basis)
    if there is not None:
        return there
    run = open_run(plan.folder(basis))
    test = first_tokens(run.model, plan.data, plan.test_tokens, "test")
    kinds = measures.kinds(run.network)
    chosen = _sections(plan, run.network, kinds)
    for kind, names in chosen.items():
        if _ablate(plan, run, test, names):
            clock.stop(run.folder, f"edges required, {kind}")
    if _together(run, test, kinds):
        clock.stop(run.folder, "sections together")
    if _describe(run, plan, progress):
        clock.stop(run.folder, "features")
    result = _measured(plan, run, test) | {"times": load_result(run.folder, TIMES)}
    result["phases"] = {name: round(t, 1) for name, t in run.graph.provenance.timings.items()}
    save_result(run.folder, NAME, result)
    return result


def build_run(plan: LanguagePlan, basis: Basis, progress: Progress) -> bool:
    """The run of the model in a basis, in its folder; whether it had still to be built."""
    opened, folder = open_model(plan.model), plan.folder(basis)
    data = first_tokens(opened, plan.data, plan.tokens)
    edge_data = first_tokens(opened, plan.data, plan.edge_tokens)
    names = {"model": plan.model, "data": data.spec, "edge_data": edge_data.spec, "basis": basis}
    asked = make_request(names | plan.settings | {"threads": torch.get_num_threads()})
    if (folder / "config.json").is_file():
        there = check_same_build(folder, opened.network.fingerprint(), asked.settings.model_dump())
        wanted = {"data": len(data), "edge_data": len(edge_data)}
        for name, count in wanted.items():
            if there.provenance.samples[name] != count:
                raise InterbasisError(
                    f"{folder} was built from {there.provenance.samples[name]} samples of {name}, not "
                    f"{count}; name another --out, or delete it"
                )
        Checkpoints(folder, "build", restart=True).finish()
        return False
    graph = build(
        opened.network, data, edge_data=edge_data, model=plan.model, resume=folder, progress=progress,
        request=asked, **asked.settings.model_dump(),
    )  # fmt: skip
    graph.save(folder)
    return True


def first_tokens(model: Model, spec: str, tokens: int, split: Split = "train") -> Samples:
    """The first windows that hold so many tokens, or all there are; named so that they can be had again."""
    there = model.open_data(spec, split)
    if there.kind != "tokens":
        raise InterbasisError(f"expected text, as tokens:PATH, text:PATH or hf:DATASET, received {spec}")
    positions = there[0][0].shape[-1]
    count = min(len(there), -(-tokens // positions))
    folder = there.tokenizer or (Path(model.tokenizer) if Path(model.tokenizer).is_dir() else None)
    return replace(first_of(there, count), tokenizer=folder)


def _sections(plan: LanguagePlan, network: Network, kinds: list[str]) -> dict[str, list[str]]:
    """Source layers of the sections to ablate, by what they are; the middle block alone where quick."""
    chosen: dict[str, list[str]] = {}
    middle = measures.middle_block(network)
    for name, kind in zip(network.layers, kinds, strict=False):
        if plan.quick and not name.endswith(f".{middle}"):
            continue
        if kind in CENTRAL or plan.norms:
            group = kind if kind in CENTRAL else "layer norm"
            chosen.setdefault(group, []).append(name)
    order = [*CENTRAL, "layer norm"]
    return dict(sorted(chosen.items(), key=lambda item: order.index(item[0])))


def _ablate(plan: LanguagePlan, run: OpenRun, test: Samples, names: list[str]) -> bool:
    """Edges required in some sections, stored in the run; whether they had still to be found."""
    stored = load_result(run.folder, "ablation")
    asked = {"metric": "cross_entropy", "tolerance": plan.tolerance}
    if stored is not None and stored["data"]["fingerprint"] == Batches(test).fingerprint():
        there = {row["from"] for row in stored["sections"] if "interval" in row}
        if all(stored[key] == value for key, value in asked.items()):
            names = [name for name in names if name not in there]
    if not names:
        return False
    request = AblationRequest(
        metric="cross_entropy", tolerance=plan.tolerance, sections=names, stable=False, intervals=True
    )
    ablate_run(run, request, test.spec)
    return True


def _together(run: OpenRun, test: Samples, kinds: list[str]) -> bool:
    """The cross-entropy with the accepted masks of several sections in force at once, stored in the run.

    Whether it had still to be measured for these masks and windows.
    """
    ablation = load_result(run.folder, "ablation")
    assert ablation is not None
    counts = {row["from"]: row["count"] for row in ablation["sections"]}
    belongs = {"data": ablation["data"]["fingerprint"], "counts": counts}
    stored = load_result(run.folder, TOGETHER)
    if stored is not None and stored["of"] == belongs:
        return False
    masks = {
        int(name.removeprefix("edge_mask.")): mask
        for name, mask in load_tensors(run.folder, "ablation").items()
        if name.startswith("edge_mask.")
    }
    evaluation = Evaluation(run.network, run.graph, test, "cross_entropy")
    groups = {f"every {kind} section": [k for k in masks if kinds[k] == kind] for kind in CENTRAL}
    groups["all of these"] = [k for k in masks if kinds[k] in CENTRAL]
    if len(masks) > len(groups["all of these"]):
        groups["layer norms, too"] = list(masks)
    rows = [
        {
            "sections": name,
            "number": len(some),
            "edges": sum(int(masks[k][:, 1:].sum()) for k in some),
            "value": evaluation.edges({k: masks[k] for k in some}).value,
            "baseline": evaluation.baseline.value,
        }
        for name, some in groups.items()
        if some
    ]
    save_result(run.folder, TOGETHER, {"of": belongs, "rows": rows})
    return True


def _describe(run: OpenRun, plan: LanguagePlan, progress: Progress) -> bool:
    """Positions, examples, direct effects of the first features of every layer, where not yet known."""
    if load_result(run.folder, "features") is not None and load_result(run.folder, "examples") is not None:
        return False
    samples = first_tokens(run.model, plan.data, min(plan.tokens, LOOKED_AT))
    rendering, classes, outputs = renderings(samples, run.network.family)
    request = Request(DESCRIBED, ExamplePlan(ends=4, bands=2, per_band=2), rendering, outputs, classes)
    found, shown = analyse(run.graph, run.network, samples, request, progress)
    save_result(run.folder, "features", found)
    save_result(run.folder, "examples", shown)
    return True


def _measured(plan: LanguagePlan, run: OpenRun, test: Samples) -> dict[str, Any]:
    ablation, features, together = (
        load_result(run.folder, name) for name in ("ablation", "features", TOGETHER)
    )
    assert ablation is not None
    assert features is not None
    assert together is not None
    masks, graph = load_tensors(run.folder, "ablation"), run.graph
    kinds, positions = measures.kinds(run.network), test[0][0].shape[-1]
    return {
        "basis": graph.config.basis,
        "run": run.folder.name,
        "model": plan.model,
        "model_fingerprint": graph.provenance.model_fingerprint,
        "dtype": graph.config.dtype,
        "depth": plan.depth,
        "baseline": ablation["baseline"],
        "data": {
            "tokens": graph.provenance.samples["data"] * positions,
            "edge_tokens": graph.provenance.samples["edge_data"] * positions,
            "test_tokens": len(test) * positions,
            "test_windows": len(test),
            "fingerprint": ablation["data"]["fingerprint"],
        },
        "described_tokens": min(graph.provenance.samples["data"], -(-LOOKED_AT // positions)) * positions,
        "middle": measures.middle_block(run.network),
        "layers": measures.layers(summarise(graph)["layers"], graph, features),
        "edges": measures.edges(ablation, run.network, kinds),
        "norms": measures.layer_norms(graph, kinds),
        "reach": measures.reach(graph, kinds, masks),
        "profiles": measures.profiles(features, f"ln1.{measures.middle_block(run.network)}"),
        "together": together["rows"],
    }
