"""Coverage by package, from coverage's JSON report: `python tests/coverage_table.py FILE`."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

KEYS = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def table(report: dict[str, Any]) -> str:
    """A line per package: lines and branches that the tests of this process ran."""
    packages: dict[str, Counter[str]] = {}
    for file, entry in report["files"].items():
        parts = Path(file).parts[1:]
        name = "/".join(parts[:2] if len(parts) > 2 else parts[:1])
        packages.setdefault(name, Counter()).update({key: entry["summary"][key] for key in KEYS})
    packages["all"] = sum(packages.values(), Counter())
    rows = [f"{'package':28} {'lines':>7} {'branches':>9} {'both':>7}"]
    for name, counts in packages.items():
        lines, statements, branches, jumps = (counts[key] for key in KEYS)
        both = (lines + branches) / max(1, statements + jumps)
        rows.append(
            f"{name:28} {lines / max(1, statements):7.1%} {branches / max(1, jumps):9.1%} {both:7.1%}"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
