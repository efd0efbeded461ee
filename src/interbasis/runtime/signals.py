"""What processes of torchrun say when it ends them."""

import os
import signal
from types import FrameType


def say_when_ended() -> None:
    """Say one sentence when torchrun tells this process to end, as it does when another one has ended.

    The process ends at once: what is on disk is whole at every moment.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        signal.signal(signal.SIGTERM, _end)


def say_no_more() -> None:
    """This process is ending by itself and has said why."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _end(number: int, frame: FrameType | None) -> None:
    process = f"{int(os.environ['RANK']) + 1} of {os.environ['WORLD_SIZE']}"
    message = (
        f"error: process {process} was told to end, as torchrun does when another one has ended; run the "
        "same command again to resume\n"
    )
    os.write(2, message.encode())
    os._exit(128 + number)
