"""What a release says of itself: one version, in every place that names it."""

import re
import tomllib
from importlib.resources import files

import yaml
from packaging.version import Version

import interbasis
from command_line import Cli
from conftest import LONG_FILES
from interbasis.base import version
from pages import ROOT


def test_version(cli: Cli) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["project"]["dynamic"] == ["version"]
    file = ROOT / settings["tool"]["hatch"]["version"]["path"]
    assert f'VERSION = "{version.VERSION}"' in file.read_text()  # of this tree, also where a wheel is tested
    assert interbasis.__version__ == version.VERSION == cli("--version").out.strip()


def test_the_citation_and_the_changelog_name_the_last_release_and_its_date() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    released = re.findall(r"^## \[?([\d.]+)\]? - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == (citation["version"], citation["date-released"])
    last, now = Version(citation["version"]), Version(version.VERSION)
    assert now == last or (now.is_devrelease and now > last)


def test_a_release_is_told_in_thirty_lines() -> None:
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert len(releases) > 2
    for release in releases:
        lines = release.strip().splitlines()
        assert len(lines) <= 30, f"{lines[0]} has {len(lines)} lines; tables belong into docs/migration.md"


def test_annotations_are_shipped() -> None:
    assert files("interbasis").joinpath("py.typed").is_file()


def test_hooks_and_hosted_ci_run_what_make_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    commands = (ROOT / "Makefile").read_text().replace("$(BIN)", ".venv/bin")
    assert [repo["repo"] for repo in hooks] == ["local"]
    for hook in hooks[0]["hooks"]:
        tool, *action = hook["entry"].removesuffix(" --force-exclude").split()
        assert " ".join([tool, *action]) in commands
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    targets = {step["run"].split()[1] for step in steps if "run" in step}
    targets |= set(workflow["jobs"]["others"]["strategy"]["matrix"]["target"])
    assert all(step["run"].startswith("make ") for step in steps if "run" in step)
    assert targets - {"${{"} == {"test", "slow", "lens", "dictionaries", "docs"}
    assert all(re.search(rf"^{target}: ", commands, re.MULTILINE) for target in targets - {"${{"})
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    for python in workflow["jobs"]["test"]["strategy"]["matrix"]["python"]:
        assert f"Programming Language :: Python :: {python}" in classifiers


def test_hosted_actions_are_pinned_by_commit() -> None:
    workflows = [path.read_text() for path in sorted((ROOT / ".github/workflows").glob("*.yml"))]
    used = re.findall(r"uses: (?!\./)(\S+)", "\n".join(workflows))
    assert len(used) > 5
    assert [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)] == []


def test_the_long_files_of_the_tests_are_there() -> None:
    assert [name for name in LONG_FILES if not (ROOT / "tests" / name).is_file()] == []
