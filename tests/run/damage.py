"""A small run written by the commands, and seeded damage to the JSON that it stores."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from command_line import run_command

FILES = (
    "config.json", "ablation.json", "curves.json", "controls.json", "modules.json", "features.json",
    "examples.json", "notes.json", "traces/first.json",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, "text", "", 0, -1, 1, 7, 2.5, -0.5, 10**6, 10**18, 10**30, -(10**30), 1e308, -1e308, 1e-320,
    float("nan"), float("inf"), float("-inf"), [], {}, [[]], [None], [1, "a"], {"a": 1},
    "\x1b]52;c;aGk=\x07", "\x00", "\ud800", "\udfff\ud800", "x" * 100_000, "\u202e", "<b>&", "\n\r\t",
    "$x_",
)  # fmt: skip
MAX_DEPTH = 100_000


def write_run(folder: Path, model: Path) -> Path:
    """A run with every result that commands store."""
    run = folder / "run"
    for words in (
        ("build", f"modadd:{model}", "--out", run),
        ("modules", run, "--null-graphs", "2"),
        ("ablate", run, "--tolerance", "0.02", "--intervals", "--robust"),
        ("ablate", run, "--tolerance", "0.02", "--nodes"),
        ("curves", run),
        ("controls", run, "--bases", "lib,pca", "--tolerance", "0.5", "--scrambles", "1"),
        ("features", run, "--top", "3", "--ends", "2", "--bands", "1"),
        ("trace", run, "--sample", "3", "--name", "first", "--checks", "3"),
    ):
        ended = run_command(*words)
        assert ended.code == 0, (words, ended.err)
    return run


@dataclass(frozen=True)
class Place:
    """A value inside JSON: what holds it, and under which key or index."""

    inside: Any
    key: Any


def places(value: Any) -> Iterator[Place]:
    """Every value of a document, its parents first."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(pairs):
        yield Place(value, key)
        yield from places(item)


def damaged(run: Path, copy: Path, seed: int) -> str:
    """Copy a run and damage one or two of its JSON files; returns what was done."""
    random = Random(seed)
    shutil.copytree(run, copy)
    done = []
    for _ in range(random.choice((1, 1, 1, 2))):
        name = random.choice(FILES)
        path = copy / name
        if path.is_file():
            done.append(f"{name}: {_damage(path, random)}")
    return "; ".join(done)


def _damage(path: Path, random: Random) -> str:
    text = path.read_text(encoding="utf-8")
    try:
        document = json.loads(text)
        found = list(places(document))
    except (ValueError, RecursionError):
        found = []
    if not found or random.random() < 0.15:
        return _damage_text(path, text, random)
    # the lists of numbers hold most of the values: half of the damage is done above them
    shallow = [place for place in found if isinstance(place.inside, dict)]
    place = random.choice(shallow if random.random() < 0.7 else found)
    return _damage_value(path, document, place, random)


def _damage_text(path: Path, text: str, random: Random) -> str:
    """Cut the file short, empty it, fill it with bytes that are no text, or bury it in brackets."""
    how = random.choice(("cut", "empty", "bytes", "deep", "number"))
    if how == "cut":
        path.write_text(text[: random.randrange(1, max(2, len(text)))])
    elif how == "empty":
        path.write_text("")
    elif how == "bytes":
        path.write_bytes(bytes(random.randrange(256) for _ in range(200)))
    elif how == "deep":
        opening, closing = random.choice(("[]", ('{"a":', "}")))
        middle = text if random.random() < 0.5 else "1"
        path.write_text(opening * MAX_DEPTH + middle + closing * MAX_DEPTH)
    else:
        path.write_text(text.replace("0.", "1e9999", 1))
    return how


def _damage_value(path: Path, document: Any, place: Place, random: Random) -> str:
    inside, key = place.inside, place.key
    kind = random.choice(("value", "value", "value", "drop", "add", "rename", "empty", "shorten", "deep"))
    deep = ""
    if kind == "drop":
        del inside[key]
    elif kind == "add":
        if isinstance(inside, dict):
            inside["an unknown \ud800 key"] = random.choice(VALUES)
        else:
            inside.insert(0, random.choice(VALUES))
    elif kind == "rename" and isinstance(inside, dict):
        inside[random.choice(("other", "", "\ud800", "\x1b[2J", "x" * 10_000))] = inside.pop(key)
    elif kind in ("empty", "shorten") and isinstance(inside[key], dict | list) and inside[key]:
        if kind == "empty":
            inside[key] = type(inside[key])()
        elif isinstance(inside[key], list):
            inside[key].pop()
        else:
            inside[key].popitem()
    elif kind == "deep":
        inside[key], deep = "DEEP", "[" * MAX_DEPTH + "]" * MAX_DEPTH
    else:
        inside[key] = random.choice(VALUES)
    text = json.dumps(document, indent=1)
    path.write_text(text.replace('"DEEP"', deep, 1) if deep else text)
    shown = inside[key] if isinstance(inside, dict) and key in inside else "…"
    return f"{kind} at {key!r:.60}, now {shown!r:.60}"
