"""A process of torchrun says one sentence when it is told to end, wherever it waits."""

import os
import signal
import subprocess
import sys
import time

import pytest

SENTENCE = (
    "was told to end, as torchrun does when another one has ended; run the same command again to resume"
)
LISTEN = "from interbasis.compute.signals import disable_end_notice, enable_end_notice; enable_end_notice()\n"
WAITS = {
    "for a process that never comes": """
from torch.distributed import TCPStore
import interbasis.compute.team as team
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
team.rendezvous = lambda *given, **options: iter([(store, 0, 2)])
print("waits", flush=True)
team.torchrun_team()
""",
    "for a process that has stopped": """
import os, signal
from datetime import timedelta
import torch
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
other = os.fork()
rank = 0 if other else 1
if not other:
    store = dist.TCPStore("127.0.0.1", store.port, is_master=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(hours=1))
if not other:
    os.kill(os.getpid(), signal.SIGSTOP)
os.waitpid(other, os.WUNTRACED)
print("waits", other, flush=True)
dist.broadcast(torch.zeros(3), 1)
""",
}
SECONDS_IN_THE_LIBRARY = 0.5
"""From its last line of output until it waits within the library, by far."""


def started(script: str, processes: int = 2) -> subprocess.Popen[str]:
    """The second of so many processes, as torchrun would start it, that has come to its first output."""
    command = [sys.executable, "-c", script]
    environment = os.environ | {"WORLD_SIZE": str(processes), "RANK": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def told_to_end(process: subprocess.Popen[str], *others: int) -> str:
    """What it says when it is told to end; the others, which hold its output open, are killed."""
    with process:
        try:
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=20)
        finally:
            process.kill()
            for other in others:
                os.kill(other, signal.SIGKILL)
        return process.stderr.read()


@pytest.mark.parametrize("wait", WAITS)
def test_a_process_that_waits_within_the_library_says_its_sentence(wait: str) -> None:
    process = started(LISTEN + WAITS[wait])
    line = process.stdout.readline().split()
    time.sleep(SECONDS_IN_THE_LIBRARY)
    assert told_to_end(process, *map(int, line[1:])) == f"error: process 2 of 2 {SENTENCE}\n"
    assert process.returncode == 128 + signal.SIGTERM


def test_a_process_that_says_why_it_ends_says_nothing_else_and_ends() -> None:
    script = LISTEN + (
        "import interbasis.compute.signals as signals, sys, time; signals.SECONDS_TO_END = 0.5\n"
        "disable_end_notice(); print('says', flush=True)\n"
        "time.sleep(0.2); print('its own sentence', file=sys.stderr, flush=True); time.sleep(60)"
    )
    process = started(script)
    process.stdout.readline()
    assert told_to_end(process) == "its own sentence\n"
    assert process.returncode == 128 + signal.SIGTERM


def test_a_process_that_was_told_to_end_says_nothing_of_its_own() -> None:
    """Its own sentence comes while the other is being said."""
    script = LISTEN + (
        "import interbasis.compute.signals as signals, os, signal, sys, time\n"
        "write = os.write\n"
        "def slowly(file, text): time.sleep(0.5); return write(file, text)\n"
        "os.write = slowly\n"
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(0.2)\n"
        "disable_end_notice(); print('its own sentence', file=sys.stderr, flush=True)"
    )
    said = started(script).communicate(timeout=20)[1]
    assert said == f"error: process 2 of 2 {SENTENCE}\n"


def test_what_it_starts_is_ended_by_the_system() -> None:
    """Programs and copies of this process do not handle the signal, and a copy does not end its parent."""
    script = LISTEN + (
        "import os, signal, subprocess, time\n"
        "program = subprocess.Popen(['sleep', '60']); program.terminate(); print(program.wait())\n"
        "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n"  # of forks with threads
        "copy = os.fork()\n"
        "time.sleep(0 if copy else 60)\n"
        "os.kill(copy, signal.SIGTERM); status = os.waitpid(copy, 0)[1]\n"
        "print(os.waitstatus_to_exitcode(status)); time.sleep(0.3)"
    )
    process = started(script)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out.split(), err) == (0, ["-15", "-15"], "")


def test_a_process_alone_and_one_with_a_handler_keep_what_they_had() -> None:
    wait = "import time; print('waits', flush=True); time.sleep(60)"
    alone = started(LISTEN + wait, processes=1)
    alone.stdout.readline()
    assert told_to_end(alone) == ""
    assert alone.returncode == -signal.SIGTERM
    own = "import signal, sys; signal.signal(signal.SIGTERM, lambda *given: sys.exit('own handler'))\n"
    handled = started(own + LISTEN + wait)
    handled.stdout.readline()
    assert told_to_end(handled) == "own handler\n"
