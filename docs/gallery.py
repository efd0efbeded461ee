"""The pages of the gallery, from the models to one HTML file each: `make gallery`.

    python docs/gallery.py modadd cifar10 conv stories [--cifar10 FILE.npz] [--stories FOLDER]

Runs go to build/gallery and are used again if they are there; pages go to docs/live. Without --cifar10 the
images are downloaded. FOLDER holds a TinyStories GPT-2 with tokens_train.uint16.
"""

import argparse
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from interbasis.cli import main as interbasis

ROOT = Path(__file__).parents[1]
LIVE, WORK = ROOT / "docs" / "live", ROOT / "build" / "gallery"
PROMPTS = {
    "lily": "Once upon a time, there was a little girl named",
    "play": "Once upon a time, there was a little girl named Lily. She liked to play with her",
}
Commands = Iterator[str]


def modadd(_: str) -> Commands:
    yield "demo --out demo"
    yield "export demo/lib --html modadd.html"


def cifar10(images: str) -> Commands:
    if not Path("cifar10.safetensors").exists():
        yield f"train cifar10 --data {images} --epochs 1 --out cifar10.safetensors"
    yield f"build mlp:cifar10.safetensors --data {images},samples=4000 --out cifar10"
    yield f"ablate cifar10 --data {images},samples=500 --tolerance 0.01 --no-stable"
    yield f"features cifar10 --top 8 --ends 4 --bands 0 --data {images},samples=1000"
    yield "export cifar10 --html cifar10.html"


def conv(images: str) -> Commands:
    yield f"build cifar10-conv --data {images},samples=300 --dtype float32 --out conv"
    yield f"features conv --top 6 --ends 4 --bands 0 --data {images},samples=300"
    yield "export conv --html conv.html"


def stories(_: str) -> Commands:
    data = "tokens:stories/tokens_train.uint16,context=64,bos=1,samples=32"
    yield f"build hf:stories,blocks=3-4 --data {data} --edge-group positions --out stories-run"
    yield f"features stories-run --top 24 --ends 2 --bands 0 --mean-effect-samples 0 --data {data}"
    for name, prompt in PROMPTS.items():
        yield f'trace stories-run --prompt "{prompt}" --name {name} --max-nodes 16 --checks 10'
    yield "export stories-run --html stories.html"


PAGES: dict[str, Callable[[str], Commands]] = {
    "modadd": modadd, "cifar10": cifar10, "conv": conv, "stories": stories,
}  # fmt: skip


def link(name: str, place: Path | None) -> None:
    """Data under a short name, so that no page holds a path of this machine."""
    if place is not None:
        Path(name).unlink(missing_ok=True)
        Path(name).symlink_to(place.resolve())


def run(command: str) -> None:
    import shlex

    print(f"interbasis {command}", flush=True)
    try:
        interbasis(shlex.split(command))
    except SystemExit as ended:
        if ended.code:
            raise


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="+", choices=PAGES)
    parser.add_argument("--cifar10", type=Path)
    parser.add_argument("--stories", type=Path)
    given = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    os.chdir(WORK)
    link("cifar10.npz", given.cifar10)
    link("stories", given.stories)
    for page in given.pages:
        for command in PAGES[page]("cifar10:cifar10.npz" if given.cifar10 else "cifar10"):
            run(command)
        LIVE.mkdir(exist_ok=True)
        shutil.copy(f"{page}.html", LIVE)


if __name__ == "__main__":
    main()
