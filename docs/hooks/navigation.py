"""Which page stands where: a page of results or a notebook that is new needs no entry."""

from pathlib import Path

from sphinx.application import Sphinx

CHILDREN = {
    "index": ["guide", "gallery", "cli", "api", "method", "evidence", "results"],
    "guide": ["families", "any_network", "dictionaries", "differences", "costs", "faq", "migration"],
    "method": ["architecture"],
    "results": [
        "results/ablations", "results/stored_graphs", "results/reproduction_modadd",
        "results/reproduction_cifar10", "results/tinystories", "results/cifar10_features",
        "results/cifar10_conv", "results/controls", "results/yardstick", "results/real_models",
        "results/smollm2", "results/known", "results/dictionaries", "results/float32", "results/calibration",
        "results/benchmarks",
    ],
}  # fmt: skip
"""Pages below a page; those in a folder of the same name follow, whether named here or not."""


def setup(app: Sphinx) -> None:
    app.connect("source-read", put_in)


def put_in(app: Sphinx, page: str, source: list[str]) -> None:
    below = list(CHILDREN.get(page, ()))
    folder = {"results": "results", "gallery": "notebooks"}.get(page)
    if folder:
        found = (
            f"{folder}/{file.stem}" for file in Path(app.srcdir, folder).glob("*.md") if file.stem != "README"
        )
        below += sorted(set(found) - set(below))
    if below:
        source[0] += "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(below) + "\n```\n"
