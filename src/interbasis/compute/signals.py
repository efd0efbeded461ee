"""What processes of torchrun say when it ends them.

Python runs handlers of signals in the main thread, between two of its own instructions, and so not at all
while that thread waits within the library for a process that will not come. The part of Python's handler that
is written in C runs at once, in whichever thread the system chooses, and writes the number of the signal into
a pipe (`signal.set_wakeup_fd`). A thread reads it there, says the sentence and ends the process. Blocking the
signal and waiting for it in a thread would do the same, but programs that this process starts would inherit
the blocked signal.
"""

import os
import signal
import time
from threading import Lock, Thread, current_thread, main_thread
from types import FrameType

from interbasis.base.errors import InterbasisError

SECONDS_TO_END = 5.0
"""How long a process that is told to end may take to say by itself why, and to end; torchrun waits for 30."""

_voice = Lock()
"""Held by whoever decides what is said; a process that was told to end keeps it until it has ended."""
_said: list[bool] = []
"""Not empty: this process ends by itself and says why."""


def torchrun_number(name: str, default: int) -> int:
    """A number that torchrun tells its processes in the environment, RANK or WORLD_SIZE.

    Raises:
        InterbasisError: It is none, or there is no process of that rank.
    """
    text = os.environ.get(name, str(default))
    least = 1 if name == "WORLD_SIZE" else 0
    if not text.isdecimal() or int(text) < least:
        raise InterbasisError(
            f"the environment variable {name} is {text!r}, expected a whole number of at least {least}; "
            "start processes with torchrun, or unset it to run one alone"
        )
    if name == "RANK" and "WORLD_SIZE" in os.environ and int(text) >= torchrun_number("WORLD_SIZE", 1):
        raise InterbasisError(
            f"the environment variable RANK is {text}, expected less than WORLD_SIZE, "
            f"{os.environ['WORLD_SIZE']}; start processes with torchrun, or unset both to run one alone"
        )
    return int(text)


def say_when_ended() -> None:
    """Say one sentence when torchrun tells this process to end, as it does when another one has ended.

    The process ends at once: what is on disk is whole at every moment. Processes alone keep what the system
    does, and a program that handles the signal itself keeps its handler.
    """
    if torchrun_number("WORLD_SIZE", 1) == 1 or current_thread() is not main_thread():
        return
    if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    Thread(target=_watch, args=(told,), name="interbasis-signals", daemon=True).start()
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, _left_to_the_thread)
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_forget)


def say_no_more() -> None:
    """This process is ending by itself and says why; does not return when it was told to end just before."""
    with _voice:
        _said.append(True)


def _left_to_the_thread(number: int, frame: FrameType | None) -> None:
    """Python's part of the handler, without which its part in C would not be there."""


def _watch(told: int) -> None:
    while number := os.read(told, 1):
        if number[0] == signal.SIGTERM:
            _end()


def _end() -> None:
    with _voice:
        if not _said:
            process = f"{torchrun_number('RANK', 0) + 1} of {os.environ['WORLD_SIZE']}"
            message = (
                f"error: process {process} was told to end, as torchrun does when another one has ended; run "
                "the same command again to resume\n"
            )
            os.write(2, message.encode())
            os._exit(128 + signal.SIGTERM)
    time.sleep(SECONDS_TO_END)
    os._exit(128 + signal.SIGTERM)


def _hold() -> None:
    """Keep the signal from a copy of this process until it has forgotten this module."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _forget() -> None:
    """A copy of this process has no such thread, and would write into the pipe of its parent."""
    if signal.getsignal(signal.SIGTERM) is _left_to_the_thread:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_go()
