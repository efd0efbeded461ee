"""What the documentation says works: every block is run; what takes too long is a command at least."""

import ast
import json
import pkgutil
import re
import sys
import tomllib
from pathlib import Path

import pytest
from cyclopts import CycloptsError

import interbasis
from command_line import run_command
from interbasis.cli import app
from messages import messages
from pages import DOCS, README, ROOT, Block, blocks, commands, indented_commands

PAGES = [README, *sorted(DOCS.glob("*.md"))]
TOLD = [DOCS / "results.md", *sorted((DOCS / "results").glob("*.md"))]
"""Pages that tell with which commands results were found, in minutes or hours."""
MOST_NOT_RUN = 13
MAKEFILE = (ROOT / "Makefile").read_text()


def run(arguments: list[str]) -> None:
    ended = run_command(*arguments)
    assert ended.code == 0, f"interbasis {' '.join(arguments)}: {ended.err}"


def check_parses(words: list[str]) -> None:
    """Whether this is a command of interbasis with options that it knows."""
    assert words[0] == "interbasis", words
    try:
        app.parse_args(words[1:], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        pytest.fail(f"{' '.join(words)}: {error}")


def run_block(block: Block, names: dict[str, object], page: str) -> None:
    if block.title:
        with open(block.title, "w", encoding="utf-8") as file:
            file.write(block.text)
    elif block.language == "python":
        exec(compile(block.text, page, "exec"), names)
    elif block.language == "bash":
        for words in commands(block.text):
            assert words[0] == "interbasis", (
                f"{page}: {' '.join(words)} cannot be run; say so above the block"
            )
            run(words[1:])
    elif block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "json":
        json.loads(block.text)
    else:
        assert block.language == "text", f"{page}: a block is python, bash, toml, json or text, not {block}"


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_one_after_the_other(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    names: dict[str, object] = {}
    before = set(sys.modules)
    for block in blocks(page):
        if block.reason is None:
            run_block(block, names, page.name)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_the_readme_s_blocks_do_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(README):
        if block.reason is None:
            run_block(block, names, README.name)
    assert "linear.1" in (tmp_path / "mine.html").read_text(encoding="utf-8")


def test_what_is_not_run_is_little_and_is_right() -> None:
    left_out = [block for page in PAGES for block in blocks(page) if block.reason]
    assert len(left_out) <= MOST_NOT_RUN
    for block in left_out:
        assert block.language == "bash", block
        for words in commands(block.text):
            if words[0] == "interbasis":
                check_parses(words)
            elif words[0] == "make":
                assert re.search(rf"^{words[1]}: \$\((READY|RUNS)\)", MAKEFILE, re.MULTILINE)
            else:
                assert words[:2] in (["pip", "install"], ["git", "clone"]), words


@pytest.mark.parametrize("page", TOLD, ids=lambda page: page.name)
def test_commands_that_results_are_told_with_are_commands(page: Path) -> None:
    fenced = [words for block in blocks(page) for words in commands(block.text) if words[0] == "interbasis"]
    for words in fenced + indented_commands(page):
        check_parses(words)


def test_every_entry_of_the_reference_has_an_example() -> None:
    parts = re.split(r"<!-- api: (\w+) -->", (DOCS / "api.md").read_text(encoding="utf-8"))
    examples = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert set(examples) == set(interbasis.__all__)
    for name, text in examples.items():
        code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
        assert re.search(rf"\b{name}\b", code), f"docs/api.md: no example of {name}"


def test_only_results_have_commands_in_indented_blocks() -> None:
    for page in set(PAGES) - set(TOLD):
        assert not indented_commands(page), f"{page.name}: put commands into ```bash, so that they are run"


def test_the_readme_is_true_to_the_makefile() -> None:
    text = README.read_text(encoding="utf-8")
    for target in ("demo", "test", "docs"):
        assert f"make {target}" in text
        assert re.search(rf"^{target}: \$\((READY|RUNS)\)", MAKEFILE, re.MULTILINE)  # installs first
    assert (ROOT / ".ci" / "run").read_text().strip().endswith("make test")


def templates() -> list[str]:
    """All texts in the source, with … for what is put in."""
    found = []
    for file in (ROOT / "src" / "interbasis").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values]
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return [*found, *re.sub(r"\{.*?\}", "…", messages()).splitlines()]


def test_the_errors_that_are_explained_are_the_code_s() -> None:
    known = templates()
    quoted = re.findall(r"^### `(.+)`$", (DOCS / "faq.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(quoted) >= 15
    for message in quoted:
        pattern = re.compile(".*".join(map(re.escape, message.split("…"))))
        assert any(pattern.search(text) for text in known), f"no message in the code is like: {message}"


def test_the_files_that_the_method_and_the_architecture_name_are_there() -> None:
    roots = (ROOT, ROOT / "src" / "interbasis", ROOT / "src" / "interbasis_studies")
    for page, fewest in (("method.md", 35), ("architecture.md", 15)):
        text = (DOCS / page).read_text(encoding="utf-8")
        names = set(re.findall(r"`([\w/]+/(?:\w+\.py)?)`", text))
        assert len(names) >= fewest
        for name in names:
            assert any((root / name).exists() for root in roots), f"{page} names {name}, which is not there"


def test_the_architecture_names_every_package() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    for entry in (ROOT / "src" / "interbasis").iterdir():
        if (entry / "__init__.py").exists():
            assert f"\n| `{entry.name}/` |" in text


def test_what_to_write_instead_is_there() -> None:
    """The second column of docs/migration.md: methods of Run, public names, and modules."""
    rows = re.findall(r"^\|.+?\|(.+)\|$", (DOCS / "migration.md").read_text(encoding="utf-8"), re.MULTILINE)
    names = set(re.findall(r"`(\w+(?:\.\w+)+)", " ".join(rows)))
    assert len(names) > 25
    starts = {"run": interbasis.Run, "interbasis": None, "interbasis_studies": None}
    for name in names - {"run.graph"}:  # an attribute of every run, not of the class
        start, _, rest = name.partition(".")
        home = starts[start] if start in starts else getattr(interbasis, start)
        if home is None:
            assert pkgutil.resolve_name(name)
        else:
            assert hasattr(home, rest), f"docs/migration.md names {name}, which is not there"
