"""Pages of results that `mkdocs.yml` does not name follow those that it does: a new one needs no entry."""

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    listed = next(entry["Results"] for entry in config.nav if "Results" in entry)
    pages = Path(config.docs_dir, "results").glob("*.md")
    listed += sorted({f"results/{page.name}" for page in pages} - set(listed))
    return config
