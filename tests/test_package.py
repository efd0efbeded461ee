"""What a release says of itself: one version, in every place that names it."""

import re
import tomllib
from importlib.resources import files
from pathlib import Path

import yaml
from packaging.version import Version

import interbasis
from conftest import LONG_FILES
from interbasis.base import version
from pages import ROOT


def test_version(cli):
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["project"]["dynamic"] == ["version"]
    assert ROOT / settings["tool"]["hatch"]["version"]["path"] == Path(version.__file__)
    assert interbasis.__version__ == version.VERSION == cli("--version").out.strip()


def test_the_citation_and_the_changelog_name_the_last_release_and_its_date():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    released = re.findall(r"^## \[?([\d.]+)\]? - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == (citation["version"], citation["date-released"])
    last, now = Version(citation["version"]), Version(version.VERSION)
    assert now == last or (now.is_devrelease and now > last)


def test_annotations_are_shipped():
    assert files("interbasis").joinpath("py.typed").is_file()


def test_hooks_and_hosted_ci_run_what_make_runs():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    commands = (ROOT / "Makefile").read_text().replace("$(BIN)", ".venv/bin")
    assert [repo["repo"] for repo in hooks] == ["local"]
    for hook in hooks[0]["hooks"]:
        tool, *action = hook["entry"].removesuffix(" --force-exclude").split()
        assert " ".join([tool, *action]) in commands
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    commands_of_jobs = [
        step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step
    ]
    assert sorted(commands_of_jobs) == ["make docs", "make lens", "make lint", "make test"]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    for python in workflow["jobs"]["test"]["strategy"]["matrix"]["python"]:
        assert f"Programming Language :: Python :: {python}" in classifiers


def test_the_long_files_of_the_tests_are_there():
    assert [name for name in LONG_FILES if not (ROOT / "tests" / name).is_file()] == []
