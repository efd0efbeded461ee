"""What the README says works."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_python_blocks_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert (tmp_path / "runs" / "mine" / "config.json").exists()
    assert max(names["missing"]) < 1e-10


def test_the_two_commands_and_their_targets_are_there():
    text, makefile = README.read_text(encoding="utf-8"), (README.parent / "Makefile").read_text()
    for target in ("demo", "test"):
        assert f"    make {target}\n" in text
        assert f"\n{target}: $(READY)" in makefile
    assert (README.parent / ".ci" / "run").read_text().strip().endswith("make test")
