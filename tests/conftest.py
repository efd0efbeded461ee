"""Paths, and reasons to skip where data are not there."""

from pathlib import Path

import pytest
from hypothesis import settings

SHARED = Path(__file__).parents[2] / "shared" / "data"

settings.register_profile("interbasis", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("interbasis")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the paper's checkpoints and stored graphs, which a user's clone does not have."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the paper's checkpoints and stored graphs, and there is no {SHARED}")
    return SHARED


@pytest.fixture
def small_chunks(monkeypatch):
    """Passes over the data in chunks of a few samples, as over data that do not fit in memory."""
    from interbasis.fit import statistics

    monkeypatch.setattr(statistics, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(statistics, "FINE_CHUNK_BYTES", 2000)
