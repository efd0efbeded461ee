"""Python's search for unused objects while a model is opened, and when the command line ends."""

import gc
import subprocess
import sys

import pytest

from interbasis.base.memory import collecting_later


def test_unused_objects_are_looked_for_afterwards() -> None:
    @collecting_later()
    def fail() -> None:
        with collecting_later():
            pass
        assert not gc.isenabled(), "the inner one leaves it as it was"
        raise KeyError

    assert gc.isenabled()
    with pytest.raises(KeyError):
        fail()
    assert gc.isenabled()


def test_a_command_ends_without_looking_for_them() -> None:
    """When Python ends, what is still there is set aside; what was registered first is called last."""
    script = (
        "import atexit, gc\n"
        "atexit.register(lambda: print('set aside:', gc.get_freeze_count() > 10_000))\n"
        "from interbasis.cli import main\n"
        "main(['--version'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set aside: True"
