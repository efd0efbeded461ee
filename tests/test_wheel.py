"""The wheel holds what the demo and the page require, and works where nothing else of this project is."""

import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from command_line import Cli
from interbasis.base.version import VERSION
from pages import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return file


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = {Path(name) for name in archive.namelist()}
        (about,) = {name.parts[0] for name in names if name.parts[0].endswith(".dist-info")}
        metadata = archive.read(f"{about}/METADATA").decode().partition("\n\n")[0]
    assert f"\nVersion: {VERSION}\n" in metadata
    packages = {"interbasis", "interbasis_studies"}
    files = {
        path.relative_to(ROOT / "src")
        for package in packages
        for path in (ROOT / "src" / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files == {name for name in names if name.parts[0] in packages}
    for required in (
        "show/viewer/static/main.js",
        "show/report/report.css",
        "weights/modadd-seed0.safetensors",
    ):
        assert Path("interbasis") / required in files
    assert {name.parts[0] for name in names} == {*packages, about}
    needed = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata, re.MULTILINE)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert sorted(needed) == sorted(requirement.partition(">=")[0] for requirement in declared)


def test_the_wheel_works_in_a_new_environment(
    wheel: Path, small_addition: Path, cli: Cli, tmp_path: Path
) -> None:
    """With the dependencies that are installed here; tests/slow/test_install.py installs them, too."""
    assert cli("build", f"modadd:{small_addition}", "--basis", "pca", "--out", tmp_path / "run").code == 0
    venv.create(tmp_path / "new", with_pip=False)
    python = tmp_path / "new" / "bin" / "python"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*install, "--disable-pip-version-check", "--no-compile", str(wheel)], check=True)
    (packages,) = (tmp_path / "new" / "lib").glob("*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = """
import interbasis.cli
for command in (["show", "modadd", "--json"], ["export", "run", "--html", "page.html", "--json"]):
    try:
        interbasis.cli.main(command)
    except SystemExit as stop:
        assert not stop.code
print(interbasis.__file__)
"""
    found = subprocess.run(
        [python, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert Path(found.splitlines()[-1]).is_relative_to(tmp_path / "new")
    assert '"family": "modadd"' in found
    assert (tmp_path / "page.html").read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")
    assert (tmp_path / "new" / "bin" / "interbasis").is_file()
