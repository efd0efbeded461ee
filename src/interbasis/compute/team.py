"""Several processes that work on one command; torchrun starts them, torch.distributed connects them.

All that a build sums over the data can be merged. The data are cut into blocks that do not depend on the
number of processes, every process sums neighbouring blocks, and the sums are merged along one fixed binary
tree (`BlockSum`): every process ends with the same bits, and so does one process alone. Work that is many
independent tasks (the sections of an ablation) is taken task by task (`collected`).
"""

import atexit
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist
from pydantic import BeforeValidator, Field
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from interbasis.base.errors import InterbasisError
from interbasis.base.files import inside
from interbasis.base.memory import parse_bytes
from interbasis.base.records import Record
from interbasis.compute.checkpoints import FOLDER, Checkpoints, State
from interbasis.compute.signals import say_no_more, say_when_ended, torchrun_number

MAX_WAIT = timedelta(hours=24)
"""How long a process waits for a slower one. One that died is noticed at once: its connections close."""


@dataclass(frozen=True)
class BlockSum:
    """A sum over data in blocks: how a block is summed, and how two sums become one.

    Sums are merged along a binary tree that the number of blocks alone decides, so that it does not matter
    who computes which blocks. The left half of a node is the largest power of two below its size.
    """

    name: str
    blocks: int
    compute: Callable[[int], State]
    merge: Callable[[State, State], State]

    def sum(self) -> State:
        """Of all blocks."""
        return self.sum_of(0, self.blocks)

    def sum_of(self, first: int, last: int) -> State:
        """Of the blocks first … last − 1, which are a node of the tree."""
        if last - first == 1:
            return self.compute(first)
        middle = _middle(first, last)
        return self.merge(self.sum_of(first, middle), self.sum_of(middle, last))

    def nodes_within(self, first: int, last: int) -> list[tuple[int, int]]:
        """The largest nodes of the tree that these blocks hold completely, in their order."""
        return list(_nodes(0, self.blocks, first, last))

    def joined(self, parts: dict[tuple[int, int], State]) -> State:
        """The sum of all blocks from the sums of nodes that hold each block once."""

        def node(first: int, last: int) -> State:
            if (first, last) in parts:
                return parts.pop((first, last))
            middle = _middle(first, last)
            return self.merge(node(first, middle), node(middle, last))

        return node(0, self.blocks)


def _middle(first: int, last: int) -> int:
    return first + (1 << (last - first - 1).bit_length() - 1)


def _nodes(low: int, high: int, first: int, last: int) -> Iterator[tuple[int, int]]:
    if first <= low and high <= last:
        yield low, high
    elif low < last and first < high and high - low > 1:
        middle = _middle(low, high)
        yield from _nodes(low, middle, first, last)
        yield from _nodes(middle, high, first, last)


class Team:
    """The processes of one command; this class is a process alone, `ConnectedTeam` several."""

    rank: int = 0
    """Number of this process, from 0."""
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    @property
    def suffix(self) -> str:
        """What is added to the name of the folder of unfinished work."""
        return "" if self.size == 1 else f".{self.size}/{self.rank}"

    @property
    def group(self) -> str:
        """Name of the commands that may build one run together; empty: this command alone."""
        return ""

    def sums(self, *passes: BlockSum) -> list[State]:
        """The sum of every pass; none of them depends on another."""
        return [one.sum() for one in passes]

    def once(self, name: str, make: Callable[[], State]) -> State:
        """What the first process makes; all receive it."""
        return make()

    def recalled(self, name: str) -> State | None:
        """What `once` or `shared` gave under this name before this process was started; None: nothing."""
        return None

    def shared(self, name: str, count: int, work: Callable[[Sequence[int]], State]) -> State:
        """work(numbers) of tasks 0 … count − 1, divided over the processes; all receive what all made."""
        return work(range(count))

    def blocks_of(self, rank: int, count: int) -> tuple[int, int]:
        """The blocks first … last − 1, of so many, that a process sums."""
        return -(-rank * count // self.size), -(-(rank + 1) * count // self.size)

    def collected(self, tasks: Sequence[str], work: Callable[[str], State]) -> dict[str, State]:
        """work(task) of every task, each done by whichever process is free; all processes receive all."""
        return {task: work(task) for task in tasks}

    def wait_for_all(self) -> None:
        """Return when every process has come here."""


ALONE = Team()


class ConnectedTeam(Team):
    """Processes connected by torch.distributed. Every process makes the same calls in the same order.

    What is sent are float64 sums and small results, so it goes through the CPU on every device.
    """

    def __init__(self, store: dist.Store, rank: int, size: int):
        self.rank, self.size = rank, size
        self._store, self._lists = store, 0

    def sums(self, *passes: BlockSum) -> list[State]:
        return [self._sum(one) for one in passes]

    def _sum(self, one: BlockSum) -> State:
        own = {node: one.sum_of(*node) for node in one.nodes_within(*self.blocks_of(self.rank, one.blocks))}
        parts = {}
        for rank in range(self.size):
            for node in one.nodes_within(*self.blocks_of(rank, one.blocks)):
                parts[node] = self._from(rank, own.pop(node, ({}, {})))
        return one.joined(parts)

    def once(self, name: str, make: Callable[[], State]) -> State:
        return self._from(0, make() if self.is_first else ({}, {}))

    def shared(self, name: str, count: int, work: Callable[[Sequence[int]], State]) -> State:
        own = work(range(self.rank, count, self.size))
        tensors: dict[str, Tensor] = {}
        values: dict[str, object] = {}
        for theirs, told in (self._from(rank, own) for rank in range(self.size)):
            tensors |= theirs
            values |= told
        return tensors, values

    def collected(self, tasks: Sequence[str], work: Callable[[str], State]) -> dict[str, State]:
        self._lists += 1
        done: dict[str, State] = {}
        while (number := self._next_task()) < len(tasks):
            done[tasks[number]] = work(tasks[number])
        tensors = {
            f"{task}/{name}": tensor for task, (own, _) in done.items() for name, tensor in own.items()
        }
        everything: dict[str, State] = {}
        state = tensors, {task: value for task, (_, value) in done.items()}
        for theirs, values in (self._from(rank, state) for rank in range(self.size)):
            for task, value in values.items():
                mark = f"{task}/"
                own = {key.removeprefix(mark): t for key, t in theirs.items() if key.startswith(mark)}
                everything[task] = own, value
        return {task: everything[task] for task in tasks}

    def wait_for_all(self) -> None:
        with self._connection():
            dist.barrier()

    def _next_task(self) -> int:
        with self._connection():
            return self._store.add(f"tasks.{self._lists}", 1) - 1

    def _from(self, rank: int, state: State) -> State:
        """One process's state, sent to all: what it holds as JSON, then tensor by tensor."""
        tensors, values = state
        about = {name: (str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in tensors.items()}
        text = json.dumps({"tensors": about, "values": values}).encode()
        with self._connection():
            length = self._sent(rank, torch.tensor([len(text)]))
            header = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            own = header if rank == self.rank else torch.empty(int(length), dtype=torch.uint8)
            described = json.loads(self._sent(rank, own).numpy().tobytes())
            received = {}
            for name, (dtype, shape) in described["tensors"].items():
                if rank == self.rank:
                    self._sent(rank, tensors[name].detach().cpu().contiguous())
                else:
                    received[name] = self._sent(rank, torch.empty(shape, dtype=getattr(torch, dtype)))
        if rank == self.rank:  # on the CPU, too: it is merged with what the others sent
            return {name: tensor.detach().cpu() for name, tensor in tensors.items()}, values
        return received, described["values"]

    @staticmethod
    def _sent(rank: int, tensor: Tensor) -> Tensor:
        """A tensor as one process has it; the others give one of its shape to be filled."""
        if tensor.numel():
            dist.broadcast(tensor, rank)
        return tensor

    @contextmanager
    def _connection(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            say_no_more()
            raise InterbasisError(
                f"process {self.rank + 1} of {self.size} lost its connection to the others, one of which has "
                "ended; run the same command again to resume"
            ) from error


def team_checkpoints(
    run: Path, task: str, settings: dict[str, object], team: Team, *, restart: bool = False
) -> Checkpoints:
    """Unfinished work of one process of a team, RUN/.resume/TASK or, of several, RUN/.resume/TASK.N/RANK.

    Raises:
        InterbasisError: Work was begun with other settings, or by another number of processes.
    """
    own = task + team.suffix
    for folder in sorted(inside(run, FOLDER).glob(f"{task}*")):
        number = folder.name.removeprefix(task).removeprefix(".") or "1"
        if folder.name == own.split("/")[0] or not folder.is_dir() or not number.isdecimal():
            continue
        inside(run, f"{FOLDER}/{folder.name}")
        if not restart:
            raise InterbasisError(
                f"{run} holds an unfinished {task} that was begun by {_processes(int(number))}, not "
                f"{_processes(team.size)}; start the same number to resume, or delete {folder} to start again"
            )
        shutil.rmtree(folder, ignore_errors=True)
    return Checkpoints(run, own, settings, restart=restart)


def _processes(number: int) -> str:
    return "one process" if number == 1 else f"{number} processes"


def team_of_torchrun() -> Team:
    """The processes that torchrun started, connected; a process alone where it did not start this one."""
    size = torchrun_number("WORLD_SIZE", 1)
    if size == 1 or "RANK" not in os.environ:
        return ALONE
    if _connected:
        return _connected[0]
    say_when_ended()
    number = torchrun_number("RANK", 0) + 1
    try:
        store, rank, size = next(rendezvous("env://", timeout=MAX_WAIT))
    except (RuntimeError, ValueError) as error:
        raise InterbasisError(
            f"process {number} of {size} could not connect to the others ({error}); start them with torchrun"
        ) from error
    started = dist.PrefixStore(f"interbasis.{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    try:
        dist.init_process_group("gloo", store=started, rank=rank, world_size=size, timeout=MAX_WAIT)
    except RuntimeError as error:
        say_no_more()
        raise InterbasisError(
            f"process {number} of {size} could not connect to the others, one of which has ended; run the "
            "same command again to resume"
        ) from error
    atexit.register(dist.destroy_process_group)
    _connected.append(ConnectedTeam(started, rank, size))
    return _connected[0]


_connected: list[Team] = []
"""A process is connected once."""


def _text(amount: object) -> object:
    return str(amount) if isinstance(amount, int) and not isinstance(amount, bool) else amount


class Resources(Record):
    """What a build may use; nothing here changes the graph but the last digits of its numbers."""

    cache_gigabytes: float = Field(default=4.0, ge=0, allow_inf_nan=False)
    """Disk space for activations between blocks during the build; 0 for none."""
    memory: Annotated[str | None, BeforeValidator(_text)] = None
    """Maximum memory to use, such as 8GB: batches and blocks are chosen to fit, sections are built one after
    the other and blocks of a Hugging Face model loaded one at a time if necessary; default: no limit."""
    device: str | None = None
    """Device to compute on: cpu, cuda, cuda:1, or mps, which has no float64 and computes in float32;
    default: cpu."""

    @property
    def bytes(self) -> int | None:
        """The limit on memory."""
        return None if self.memory is None else parse_bytes(self.memory)
