"""Message of processes that torchrun ends.

Python runs handlers of signals in the main thread, between two of its own instructions, and so not at all
while that thread waits within the library for a process that will not come. The part of Python's handler that
is written in C runs at once, in whichever thread the system chooses, and writes the number of the signal into
a pipe (`signal.set_wakeup_fd`). A thread reads it there, prints the message and ends the process. Blocking
the signal and waiting for it in a thread would do the same, but programs that this process starts would
inherit the blocked signal.
"""

import os
import signal
import time
from threading import Event, Lock, Thread, current_thread, main_thread
from types import FrameType

from interbasis.base.errors import InterbasisError

SECONDS_TO_END = 5.0
"""Time in which a process that received the signal may print its own error and end; torchrun waits for 30."""

_message_lock = Lock()
"""Held while it is decided which message is printed; after the signal, until the process has ended."""
_disabled = Event()
"""Set where this process ends by itself and prints why."""


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


def enable_end_notice() -> None:
    """Print one sentence when torchrun tells this process to end, as it does when another one has ended.

    The process ends at once: what is on disk is whole at every moment. Processes alone keep what the system
    does, and a program that handles the signal itself keeps its handler.
    """
    if torchrun_number("WORLD_SIZE", 1) == 1 or current_thread() is not main_thread():
        return
    if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    receiver, sender = os.pipe()
    os.set_blocking(sender, False)
    Thread(target=_watch, args=(receiver,), name="interbasis-signals", daemon=True).start()
    signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, _handled_by_the_thread)
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_restore_default)


def disable_end_notice() -> None:
    """Leave the message to the caller, whose process ends by itself; does not return after the signal."""
    with _message_lock:
        _disabled.set()


def _handled_by_the_thread(number: int, frame: FrameType | None) -> None:
    """Python's part of the handler, without which its part in C would not be there."""


def _watch(receiver: int) -> None:
    while os.read(receiver, 1)[0] != signal.SIGTERM:
        pass
    with _message_lock:
        if not _disabled.is_set():
            process = f"{torchrun_number('RANK', 0) + 1} of {os.environ['WORLD_SIZE']}"
            message = (
                f"error: process {process} was told to end, as torchrun does when another one has ended; run "
                "the same command again to resume\n"
            )
            os.write(2, message.encode())
            os._exit(128 + signal.SIGTERM)
    time.sleep(SECONDS_TO_END)
    os._exit(128 + signal.SIGTERM)


def _block() -> None:
    """Keep the signal from a copy of this process until its handler is the default again."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _restore_default() -> None:
    """A copy of this process has no such thread, and would write into the pipe of its parent."""
    if signal.getsignal(signal.SIGTERM) is _handled_by_the_thread:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _unblock()
