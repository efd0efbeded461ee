"""Two commands on one run at the same time: right results or one refusal, never a mixture.

What is right are the results of the commands one after the other, in either order, or of one of them alone if
the other is refused.
"""

import json
import random
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from command_line import Ended, run_command
from commands_at_once import Command, Slow

COMMANDS = {
    "build": "build {model} --threads 1 --out {run}",
    "build pca": "build {model} --threads 1 --basis pca --overwrite --out {run}",
    "build gib": "build {model} --threads 1 --basis gib --overwrite --out {run}",
    "ablate": "ablate {run} --edges --nodes --tolerance 1 --json",
    "ablate 0.5": "ablate {run} --tolerance 0.5 --json",
    "curves": "curves {run} --json",
    "features": "features {run} --top 3 --json",
    "controls": "controls {run} --bases pca --scrambles 0 --json",
    "modules": "modules {run} --null-graphs 2 --json",
    "trace": "trace {run} --sample 3 --name three --json",
    "steer": "steer {run} --feature unembed:1 --by 2 --sample 3 --json",
}
MAX_SECONDS_BETWEEN = 1.0
REFUSED = re.compile(
    r"error: \S+ (is in use by .+; wait until that has ended, or use another folder"
    r"|was built again after its graph was loaded, so nothing is stored for the old graph; run this command "
    r"again)\n\Z"
)
State = tuple[dict[str, object], dict[str, dict[str, torch.Tensor]]]
"""Of a run: its JSON files and its tensor files, by name."""
Outcome = tuple[State, dict[str, object]]
"""The state of a run, and what the commands printed."""


class Pairs:
    """Runs pairs of commands, and compares them with the same commands one after the other."""

    def __init__(self, model: Path, folder: Path, seconds: float = 0.03) -> None:
        self.model, self.folder = f"modadd:{model}", folder
        self.seconds = seconds
        """The mean of the waits before file operations."""
        self._orders: dict[tuple[str, ...], Outcome] = {}
        self.template = folder / "template" / "run"
        assert run_command(*self._words("build", self.template)).code == 0

    def _words(self, name: str, run: Path) -> list[str]:
        return COMMANDS[name].format(model=self.model, run=run).split()

    def _copy(self, name: str) -> Path:
        """A copy of the run under the same name, for results name it."""
        run = self.folder / name / "run"
        shutil.copytree(self.template, run)
        return run

    def _in_order(self, *names: str) -> Outcome:
        """What commands leave and print that run one after the other."""
        if names not in self._orders:
            run = self._copy("-".join(names).replace(" ", "_"))
            printed = {}
            for name in names:
                printed[name] = output_of(run_command(*self._words(name, run)), run)
            self._orders[names] = state_of(run), printed
        return self._orders[names]

    def check(self, number: int, first: str, second: str, wait: float) -> str:
        """Run two commands at once; how it went, if that is right."""
        run = self._copy(f"pair-{number}")
        names = first, second
        commands = [
            Command(*self._words(name, run), wait=wait * k, slow=Slow(run, 2 * number + k, self.seconds))
            for k, name in enumerate(names)
        ]
        ended = dict(zip(names, [command.end() for command in commands], strict=True))
        refused = [name for name, end in ended.items() if REFUSED.search(end.err)]
        assert all((ended[name].code, ended[name].out) == (2, "") for name in refused)
        done = [name for name in names if name not in refused]
        assert done, ended
        orders = [done] if len(done) == 1 else [done, done[::-1]]
        found = state_of(run), {name: output_of(ended[name], run) for name in done}
        assert any(same(found, self._in_order(*order)) for order in orders), (names, wait, found[1])
        if refused:
            return "the second refused" if refused == [second] else "the first refused"
        overlap = max(one.began for one in commands) < min(one.ended for one in commands)
        return "both done, at the same time" if overlap else "both done, one after the other"


def output_of(ended: Ended, run: Path) -> object:
    """The JSON or the sentence that a command printed, without its folder; builds print times."""
    if ended.code:
        assert ended.code == 2, ended
        return ended.err.replace(str(run), "RUN")
    return json.loads(ended.out) | {"run": "RUN"} if ended.out.startswith("{") else None


def state_of(run: Path) -> State:
    """All files of a run but for timings; a lock or unfinished work that is left would be among them."""
    texts: dict[str, object] = {}
    tensors = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if path.suffix == ".safetensors":
            tensors[name] = load_file(path)
        elif path.is_file():
            content = json.loads(path.read_text())
            for timings in ("timings", "processor_timings"):
                content.get("provenance", {}).pop(timings, None)
            texts[name] = content
    return texts, tensors


def same(one: Outcome, other: Outcome) -> bool:
    """Whether files and outputs are the same, tensors bit for bit."""
    ((texts, tensors), printed), ((other_texts, other_tensors), other_printed) = one, other
    if texts != other_texts or printed != other_printed or tensors.keys() != other_tensors.keys():
        return False
    return all(
        tensors[name].keys() == other_tensors[name].keys()
        and all(torch.equal(tensor, other_tensors[name][key]) for key, tensor in tensors[name].items())
        for name in tensors
    )


def random_pairs(count: int, seed: int) -> list[tuple[str, str, float]]:
    """Pairs of different commands, with the seconds that the second one waits."""
    draw = random.Random(seed)
    commands: Any = list(COMMANDS)
    return [(*draw.sample(commands, 2), draw.uniform(0, MAX_SECONDS_BETWEEN)) for _ in range(count)]


def run_pairs(pairs: Pairs, chosen: list[tuple[str, str, float]]) -> Counter[str]:
    """How often pairs went which way, if all of them went right."""
    found, wrong = Counter[str](), []
    for number, pair in enumerate(chosen):
        try:
            found[pairs.check(number, *pair)] += 1
        except AssertionError as error:
            wrong.append(str(error).splitlines()[0])
    assert not wrong, "\n".join([f"{len(wrong)} of {len(chosen)} pairs went wrong:", *wrong])
    return found
