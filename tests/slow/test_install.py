"""The wheel in new environments: the lowest versions of all dependencies, and the newest; then the demo.

The interpreters are those in INTERBASIS_PYTHONS, separated by commas; default: the one that runs the tests.
Packages come from the index that pip is set up with.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pages import ROOT

PYTHONS = os.environ.get("INTERBASIS_PYTHONS", sys.executable).split(",")
DEPENDENCIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("versions", ["lowest", "newest"])
def test_the_demo_in_a_new_environment(versions: str, python: str, tmp_path: Path) -> None:
    """On Pythons that came after the lowest versions, pip finds no wheels of these: 3.11 is for them."""
    pip: list[str | Path] = [tmp_path / "new" / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    run([python, "-m", "venv", tmp_path / "new"])
    run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "wheel", ROOT])
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    lowest = [re.sub(">=", "==", requirement) for requirement in DEPENDENCIES]
    (tmp_path / "constraints.txt").write_text("\n".join(lowest if versions == "lowest" else []) + "\n")
    run([*pip, "install", "--quiet", "-c", tmp_path / "constraints.txt", wheel])
    command = tmp_path / "new" / "bin" / "interbasis"
    assert (
        "--out is required"
        in subprocess.run([command, "build", "modadd"], cwd=tmp_path, capture_output=True, text=True).stderr
    )
    found = json.loads(run([command, "demo", "--json", "--quiet"], cwd=tmp_path))
    sections = found["ablation"]["sections"]
    assert {name: row["count"] for name, row in sections.items()} == {
        "attn_in.0": 53, "mlp_in.0": 33, "unembed": 531,
    }  # fmt: skip
    assert Path(tmp_path / found["page"]).stat().st_size > 100_000
    size = sum(path.lstat().st_size for path in (tmp_path / "new").rglob("*"))
    print(f"{versions} on {python}: {size / 1e6:,.0f} MB", run([*pip, "freeze"]), sep="\n")


def run(command: list[str | Path], **options: Any) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout
