"""The report of a reproduction on a language model as a Markdown page."""

from typing import Any

from interbasis.paper.markdown import percent, table

TITLES = {
    "tinystories": "A TinyStories model, reproduced (paper 3.3; claims L1 to L5)",
    "gpt2": "GPT2-small, reproduced (paper 3.3; claims L1 to L5)",
}
KINDS = {
    "attention": "attention", "MLP": "MLP", "norm in": "layer norm, variance",
    "norm out": "layer norm, division", "other": "other",
}  # fmt: skip
EXAMPLES = 3


def page(found: dict[str, Any]) -> str:
    """The whole page."""
    parts = [f"# {TITLES[found['task']]}", _head(found), _verdicts(found)]
    if found["pieces"]:
        parts += [_edges(found), _together(found), _layers(found), _positions(found), _norms(found),
                  _reach(found), _examples(found)]  # fmt: skip
    parts += [*_figures(found), _times(found)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(found: dict[str, Any]) -> str:
    missing = ", ".join(row["basis"] for row in found["missing"])
    lines = [f"Written on {found['date']} by\n", f"    {found['command']}\n"]
    if missing:
        lines.append(f"**Not finished yet:** {missing}. The same command goes on with them.\n")
    if found["quick"]:
        lines.append("Quick form: few tokens, and edges required in the middle block alone.\n")
    for piece in found["pieces"][:1]:
        data = piece["data"]
        lines.append(
            f"Model: `{found['model']}`, node layers in {piece['dtype']}. Bases from {data['tokens']:,} "
            f"tokens and edges (gradient{_sampled(found)}) from {data['edge_tokens']:,} tokens of the "
            f"training set of `{found['data']}`. "
            f"Masks are tried on {data['test_tokens']:,} tokens of its test set "
            f"({data['test_windows']} windows, the same for every mask and basis), on which the untouched "
            f"model has a cross-entropy of {piece['baseline']:.4f}; what passes is at most "
            f"{found['depth']['tolerance']:g} above it."
        )
    return "\n".join(lines)


def _sampled(found: dict[str, Any]) -> str:
    """What is estimated instead of summed over everything, where anything is."""
    settings = found.get("settings", {})
    return "".join(f", {name.replace('_', ' ')} {value}" for name, value in settings.items())


def _verdicts(found: dict[str, Any]) -> str:
    rows = [
        (v["claim"], v["statement"], v["paper"], v["here"],
         f"**{v['ruling']}**" + (f": {v['by']}" if v["by"] else ""), v["rule"])
        for v in found["verdicts"]
    ]  # fmt: skip
    return (
        "## Verdicts\n\nOf this model, by the rules in the last column; the paper's figures are those of "
        "the model that they name.\n\n"
        + table(("claim", "what it says", "paper", "here", "verdict", "rule"), rows)
    )


def _edges(found: dict[str, Any]) -> str:
    if not found["comparison"]:
        return _edges_alone(found)
    parts = [
        "## Edges required\n\nThe fewest edges that pass, by bisection as in the paper, each section ablated "
        "alone; the constant's are free. In brackets the 95 % bootstrap interval over the windows "
        "(1,000 draws, the same for both bases; the count from which every larger one that was tried "
        "passes). Ratio: LIB's over PCA's, its interval from paired draws; **bold** where it excludes 1."
    ]
    for kind, title in KINDS.items():
        rows = [
            (
                f"{row['from']} → {row['to']}", row["possible"],
                f"{row['lib']:,} {_interval(row['lib_interval'])}",
                f"{row['pca']:,} {_interval(row['pca_interval'])}",
                percent(1 - row["lib"] / row["possible"], 1), percent(1 - row["pca"] / row["possible"], 1),
                _ratio(row),
            )
            for row in found["comparison"]
            if row["kind"] == kind
        ]  # fmt: skip
        if rows:
            names = ("section", "possible", "LIB", "PCA", "LIB can go", "PCA can go", "ratio")
            parts.append(f"### {title[0].upper()}{title[1:]}\n\n" + table(names, rows))
    return "\n\n".join([*parts, *_edges_of_others(found)])


def _edges_alone(found: dict[str, Any]) -> str:
    rows = [
        (piece["basis"], f"{row['from']} → {row['to']}", KINDS[row["kind"]], row["possible"],
         f"{row['count']:,} {_interval(row['interval'])}", percent(1 - row["kept_fraction"], 1))
        for piece in found["pieces"]
        for row in piece["edges"]
    ]  # fmt: skip
    return "## Edges required\n\n" + table(
        ("basis", "section", "kind", "possible", "count [95 %]", "can go"), rows
    )


def _edges_of_others(found: dict[str, Any]) -> list[str]:
    others = [piece for piece in found["pieces"] if piece["basis"] not in ("lib", "pca")]
    rows = [
        (piece["basis"], f"{row['from']} → {row['to']}", f"{row['count']:,} {_interval(row['interval'])}")
        for piece in others
        for row in piece["edges"]
    ]
    return ["### Other bases\n\n" + table(("basis", "section", "count [95 %]"), rows)] if rows else []


def _interval(interval: list[float]) -> str:
    return f"[{interval[0]:,.0f}, {interval[1]:,.0f}]"


def _ratio(row: dict[str, Any]) -> str:
    low, high = row["interval"]
    text = f"{row['ratio']:.2f} [{low:.2f}, {high:.2f}]"
    return f"**{text}**" if high < 1 or low > 1 else text


def _together(found: dict[str, Any]) -> str:
    rows = [
        (piece["basis"], row["sections"], row["number"], row["edges"], f"{row['value']:.4f}",
         f"{row['value'] - row['baseline']:+.4f}")
        for piece in found["pieces"]
        for row in piece["together"]
    ]  # fmt: skip
    return "## Sections ablated together\n\nEach with the mask that passes alone.\n\n" + table(
        ("basis", "sections", "how many", "edges kept", "cross-entropy", "above the model"), rows
    )


def _layers(found: dict[str, Any]) -> str:
    pieces = found["pieces"]
    rows = []
    for k, layer in enumerate(pieces[0]["layers"]):
        cells: list[Any] = [layer["name"], layer["width"], layer["variance"]]
        for piece in pieces:
            row = piece["layers"][k]
            dropped = f"{row['features']} (−{row['dropped_as_noise']}, −{row['dropped_as_unused']})"
            cells += [dropped, f"{row['effective']:.1f}"]
        rows.append(cells)
    names = [name for piece in pieces for name in (f"{piece['basis']}: kept", "effective")]
    return (
        "## Node layers\n\nKept: features, the constant counted (directions dropped as noise, and as without "
        "effect on the next layer). Effective: participation ratio of what ranks the features, Λ in LIB, "
        "variance in PCA. Variance: of all directions kept.\n\n"
        + table(("layer", "width", "variance", *names), rows)
    )


def _positions(found: dict[str, Any]) -> str:
    parts = [
        "## Positional features\n\nShare of a feature's variance that position explains (η²), the first "
        "features of every layer, the constant and the variance of a layer norm left out. A feature that has "
        f"nothing to do with position has about {_chance(found):.1%} by chance."
    ]
    for piece in found["pieces"]:
        rows = [
            (row["name"], *(f"{share:.0%}" for share in row["positional"]),
             *(None,) * (8 - len(row["positional"])))
            for row in piece["layers"]
        ]  # fmt: skip
        parts.append(f"### {piece['basis']}\n\n" + table(("layer", *map(str, range(1, 9))), rows))
    rows = [
        (piece["basis"], piece["profiles"]["layer"], row["index"], f"{row['share']:.1%}",
         *(f"{row['shape'][name]:.2f}" for name in ("position 0", "linear", "sinusoid")),
         row["shape"]["cycles"])
        for piece in found["pieces"] if piece["profiles"]
        for row in piece["profiles"]["features"]
    ]  # fmt: skip
    parts.append(
        "What the first four look like along the sequence at the start of the middle block: R² of the mean "
        "activation with a step at position 0, a line, and the best sinusoid (both without position "
        "0).\n\n"
        + table(("basis", "layer", "feature", "position", "position 0", "linear", "sinusoid", "cycles"), rows)
    )
    return "\n\n".join(parts)


def _chance(found: dict[str, Any]) -> float:
    """Positions over tokens: what η² is on average where nothing depends on position."""
    data = found["pieces"][0]["data"]
    positions = data["test_tokens"] / data["test_windows"]
    return positions / found["pieces"][0]["described_tokens"]


def _norms(found: dict[str, Any]) -> str:
    rows = [
        (piece["basis"], f"{row['from']} → {row['to']}", f"{row['own']:.1%}", f"{row['own_of_all']:.1%}",
         f"feature {row['first']} ({row['share']:.0%})" if "first" in row else None,
         f"{row['reaches']:.0%}" if "reaches" in row else None)
        for piece in found["pieces"]
        for row in piece["norms"]
    ]  # fmt: skip
    return (
        "## Layer norms\n\nOwn edge: the largest edge's share of an output's Ê², median over the first 50 "
        "outputs (the paper pictures as many) and over all, the variance left out. Heard: the feature that "
        "drives the variance most, with its share of Ê². Told: the share of the outputs on which the "
        "variance's edge is at least 1 % of the largest.\n\n"
        + table(("basis", "section", "own edge, first 50", "all", "variance heard", "variance told"), rows)
    )


def _reach(found: dict[str, Any]) -> str:
    rows = [
        (piece["basis"], f"{row['from']} → {row['to']}",
         *(f"{share:.0%} (rank {rank})" for share, rank in zip(row["first"], row["rank"], strict=True)),
         f"{row['median']:.0%}")
        for piece in found["pieces"]
        for row in piece["reach"]
    ]  # fmt: skip
    return (
        "## Inputs of attention\n\nShare of the outputs to which an input has an edge that is needed.\n\n"
        + table(("basis", "section", "first input", "second input", "median input"), rows)
    )


def _examples(found: dict[str, Any]) -> str:
    shown = found.get("examples", [])
    if not shown:
        return ""
    rows = [
        (row["basis"], row["layer"], row["feature"], row["label"], row["most"], row["least"])
        for row in shown
    ]  # fmt: skip
    return (
        "## Feature examples\n\nThe most positive and most negative places of some features; the token that "
        "the value belongs to stands between » and «. All features that were described: `interbasis view "
        "RUN`.\n\n" + table(("basis", "layer", "feature", "label", "most positive", "most negative"), rows)
    )


def _figures(found: dict[str, Any]) -> list[str]:
    shown = [f"![{one['caption']}]({one['file']})\n\n{one['caption']}" for one in found["figures"]]
    return ["## Figures", *shown] if shown else []


def _times(found: dict[str, Any]) -> str:
    if not found["pieces"]:
        return ""
    stages = [
        (piece["basis"], name, took["wall"], took["processor"])
        for piece in found["pieces"]
        for name, took in piece["times"]["stages"].items()
    ]
    rows = [(basis, name, f"{wall:,.0f}", f"{processor:,.0f}") for basis, name, wall, processor in stages]
    each = {piece["basis"]: [row for row in stages if row[0] == piece["basis"]] for piece in found["pieces"]}
    sums = {basis: [sum(row[k] for row in some) for k in (2, 3)] for basis, some in each.items()}
    rows += [(basis, "all", f"{wall:,.0f}", f"{processor:,.0f}") for basis, (wall, processor) in sums.items()]
    walls = ", ".join(f"{basis} {wall / 60:.0f}" for basis, (wall, _) in sums.items())
    peaks = [piece["times"]["peak_bytes"] or 0 for piece in found["pieces"]]
    memory = f" Peak memory: {max(peaks) / 2**30:.2f} GB a process." if all(peaks) else ""
    threads = ", ".join(sorted({str(piece["times"]["threads"]) for piece in found["pieces"]}))
    phases = [
        (piece["basis"], name, f"{seconds:,.0f}")
        for piece in found["pieces"]
        for name, seconds in piece["phases"].items()
    ]
    return (
        f"## Times\n\nMinutes by the wall, {threads} thread(s) a process: {walls}. The sum counts where one "
        f"process did all bases, the longest of them where each had its own at the same time.{memory} Of a "
        "stage that was killed and went on, the last part alone is counted.\n\n"
        + table(("basis", "stage", "wall, s", "processor, s"), rows)
        + "\n\nThe builds by phase, by the wall:\n\n"
        + table(("basis", "phase", "wall, s"), phases)
    )
