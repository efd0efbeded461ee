"""How soon a command shows something: processor time of --help, and time to the first byte on a terminal.

    python benchmarks/startup.py

Every command is started on a terminal of its own and ended after its first byte. Seconds depend on how busy
the machine is, processor times hardly.
"""

import os
import pty
import resource
import subprocess
import sys
import time
from pathlib import Path

from interbasis.cli import COMMANDS

TICKS = os.sysconf("SC_CLK_TCK")


def processor_time_of_help() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "interbasis", "--help"], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def first_byte(command: str) -> tuple[float, float]:
    """Seconds, and seconds of the processor, until something is on the screen."""
    primary, secondary = pty.openpty()
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "interbasis", command, "nothing"],
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
    )
    os.close(secondary)
    os.read(primary, 1)
    seconds = time.perf_counter() - began
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    process.kill()
    process.wait()
    os.close(primary)
    return seconds, (int(fields[11]) + int(fields[12])) / TICKS


def main() -> None:
    print(f"--help: {min(processor_time_of_help() for _ in range(3)):.2f} s of the processor, best of 3")
    names = [name for commands in COMMANDS.values() for name in commands]
    times = {name: first_byte(name) for name in names}
    for name, (seconds, processor) in times.items():
        print(f"{name:<12} first byte after {seconds:.2f} s, {processor:.2f} s of the processor")
    print(f"most: {max(processor for _, processor in times.values()):.2f} s of the processor")


if __name__ == "__main__":
    main()
