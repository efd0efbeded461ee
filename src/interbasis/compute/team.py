"""Several processes that work on one command; torchrun starts them, torch.distributed connects them.

All that a build sums over the data can be merged. The data are cut into blocks that do not depend on the
number of processes, every process sums neighbouring blocks, and the sums are merged along one fixed binary
tree (`BlockSum`): every process ends with the same bits, and so does one process alone. Work that is many
independent tasks (the sections of an ablation) is taken task by task (`collect`).
"""

import atexit
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist
from pydantic import BeforeValidator, Field
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from interbasis.base.errors import Explained, InterbasisError
from interbasis.base.files import inside
from interbasis.base.memory import parse_bytes
from interbasis.base.records import Record
from interbasis.compute.block_sums import BlockSum
from interbasis.compute.checkpoints import FOLDER, NO_CHECKPOINTS, Checkpoints, State
from interbasis.compute.signals import disable_end_notice, enable_end_notice, torchrun_number

MAX_WAIT = timedelta(hours=24)
"""Longest wait for a slower process. One that died is noticed at once: its connections close."""


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
        """Suffix of the name of the folder of unfinished work."""
        return "" if self.size == 1 else f".{self.size}/{self.rank}"

    @property
    def group(self) -> str:
        """Name of the commands that may build one run together; empty: this command alone."""
        return ""

    def sums(self, *passes: BlockSum) -> list[State]:
        """Return the sum of every pass; none of them depends on another."""
        return [block_sum.node_sum(0, block_sum.blocks) for block_sum in passes]

    def once(self, name: str, make: Callable[[], State]) -> State:
        """Return what the first process makes; all processes receive it."""
        return make()

    def recall(self, name: str) -> State | None:
        """Return what `once` or `share` gave under this name in an earlier process; None: nothing."""
        return None

    def share(self, name: str, count: int, work: Callable[[Sequence[int]], State]) -> State:
        """Return the union of work(numbers) over all processes, tasks 0 … count − 1 divided among them."""
        return work(range(count))

    def block_range(self, rank: int, count: int) -> tuple[int, int]:
        """Return (first, last) of the blocks first … last − 1, out of ``count``, that a process sums."""
        return -(-rank * count // self.size), -(-(rank + 1) * count // self.size)

    def collect(self, tasks: Sequence[str], work: Callable[[str], State]) -> dict[str, State]:
        """Return work(task) of every task, each done by whichever process is free, in all processes."""
        return {task: work(task) for task in tasks}

    def wait_for_all(self) -> None:
        """Return when every process has come here."""


ALONE = Team()


class ConnectedTeam(Team):
    """Processes connected by torch.distributed. Every process makes the same calls in the same order.

    What is sent are float64 sums and small results, so it goes through the CPU on every device.
    """

    def __init__(self, store: Store, rank: int, size: int):
        self.rank, self.size = rank, size
        self._store, self._lists = store, 0

    def sums(self, *passes: BlockSum) -> list[State]:
        return [self._sum(block_sum) for block_sum in passes]

    def _sum(self, block_sum: BlockSum) -> State:
        nodes = [
            block_sum.nodes_within(*self.block_range(rank, block_sum.blocks)) for rank in range(self.size)
        ]
        local = {node: block_sum.node_sum(*node) for node in nodes[self.rank]}
        parts = {
            node: self._broadcast(rank, local.pop(node, ({}, {})))
            for rank in range(self.size)
            for node in nodes[rank]
        }
        return block_sum.joined(parts)

    def once(self, name: str, make: Callable[[], State]) -> State:
        return self._broadcast(0, make() if self.is_first else ({}, {}))

    def share(self, name: str, count: int, work: Callable[[Sequence[int]], State]) -> State:
        return self._union(work(range(self.rank, count, self.size)))

    def collect(self, tasks: Sequence[str], work: Callable[[str], State]) -> dict[str, State]:
        self._lists += 1
        done: dict[str, State] = {}
        while (number := self._next_task()) < len(tasks):
            done[tasks[number]] = work(tasks[number])
        numbers = {task: number for number, task in enumerate(tasks)}
        tensors = {
            f"{numbers[task]}/{name}": tensor
            for task, state in done.items()
            for name, tensor in state[0].items()
        }
        tensors, values = self._union((tensors, {task: state[1] for task, state in done.items()}))
        results: dict[str, State] = {task: ({}, values[task]) for task in tasks}
        for name, tensor in tensors.items():
            number_text, _, inner_name = name.partition("/")
            results[tasks[int(number_text)]][0][inner_name] = tensor
        return results

    def _union(self, state: State) -> State:
        """Return the states of all processes as one."""
        tensors: dict[str, Tensor] = {}
        values: dict[str, object] = {}
        for rank in range(self.size):
            more_tensors, more_values = self._broadcast(rank, state)
            tensors |= more_tensors
            values |= more_values
        return tensors, values

    def wait_for_all(self) -> None:
        with self._connection():
            dist.barrier()

    def _next_task(self) -> int:
        with self._connection():
            return self._store.add(f"tasks.{self._lists}", 1) - 1

    def _broadcast(self, rank: int, state: State) -> State:
        """Send one process's state to all: its names, dtypes, shapes and values as JSON, then its tensors."""
        tensors, values = state
        is_sender = rank == self.rank
        shapes = {name: (str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in tensors.items()}
        text = [json.dumps({"tensors": shapes, "values": values}) if is_sender else ""]
        received: dict[str, Tensor] = {}
        with self._connection():
            dist.broadcast_object_list(text, rank)
            header = json.loads(text[0])
            for name, (dtype, shape) in header["tensors"].items():
                if is_sender:
                    received[name] = tensors[name].detach().cpu().contiguous()
                else:
                    received[name] = torch.empty(shape, dtype=getattr(torch, dtype))
                if received[name].numel():
                    dist.broadcast(received[name], rank)
        if is_sender:  # on the CPU, too: it is merged with what the others sent
            return {name: tensor.detach().cpu() for name, tensor in tensors.items()}, values
        return received, header["values"]

    @contextmanager
    def _connection(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            disable_end_notice()
            raise InterbasisError(
                f"process {self.rank + 1} of {self.size} lost its connection to the others, one of which has "
                "ended; run the same command again to resume"
            ) from error


def team_checkpoints(
    run: Path | None, task: str, settings: dict[str, object], team: Team, *, restart: bool = False
) -> Checkpoints:
    """Unfinished work of one process of a team, RUN/.resume/TASK or, of several, RUN/.resume/TASK.N/RANK.

    Nothing is stored where the run is None.

    Raises:
        InterbasisError: Work was begun with other settings, or by another number of processes.
    """
    if run is None:
        return NO_CHECKPOINTS
    name = task + team.suffix
    for folder in sorted(inside(run, FOLDER).glob(f"{task}*")):
        number = folder.name.removeprefix(task).removeprefix(".") or "1"
        if folder.name == name.split("/")[0] or not folder.is_dir() or not number.isdecimal():
            continue
        inside(run, f"{FOLDER}/{folder.name}")
        if not restart:
            raise InterbasisError(
                f"{run} holds an unfinished {task} that was begun by {_processes(int(number))}, not "
                f"{_processes(team.size)}; start the same number to resume, or delete {folder} to start again"
            )
        shutil.rmtree(folder, ignore_errors=True)
    return Checkpoints(run, name, settings, restart=restart)


def _processes(number: int) -> str:
    return "one process" if number == 1 else f"{number} processes"


def torchrun_team() -> Team:
    """The processes that torchrun started, connected; a process alone where it did not start this one."""
    size = torchrun_number("WORLD_SIZE", 1)
    if size == 1 or "RANK" not in os.environ:
        return ALONE
    if _connected:
        return _connected[0]
    enable_end_notice()
    number = torchrun_number("RANK", 0) + 1
    who, remedy = f"process {number} of {size}", "start them with torchrun"
    with Explained(f"{who} could not connect to the others", RuntimeError, ValueError, remedy=remedy):
        store, rank, size = next(rendezvous("env://", timeout=MAX_WAIT))
    started = PrefixStore(f"interbasis.{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    try:
        dist.init_process_group("gloo", store=started, rank=rank, world_size=size, timeout=MAX_WAIT)
    except RuntimeError as error:
        disable_end_notice()
        raise InterbasisError(
            f"{who} could not connect to the others, one of which has ended; run the same command again to "
            "resume"
        ) from error
    atexit.register(dist.destroy_process_group)
    _connected.append(ConnectedTeam(started, rank, size))
    return _connected[0]


_connected: list[Team] = []
"""A process is connected once."""


def _text(amount: object) -> object:
    return str(amount) if isinstance(amount, int) and not isinstance(amount, bool) else amount


class Resources(Record):
    """Resources of a build; they change nothing of the graph but the last digits of its numbers."""

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
