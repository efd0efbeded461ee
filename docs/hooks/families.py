"""The supported families, from the code: what stands between <!-- families --> and <!-- /families -->.

The list is in the page as well, for readers of the Markdown; tests/docs/test_site.py says when it is old.
"""

import re

from sphinx.application import Sphinx

from interbasis.models.hf.families import FAMILIES

MARK = re.compile(r"(<!-- families -->).*?(<!-- /families -->)", re.DOTALL)


def setup(app: Sphinx) -> None:
    app.connect("source-read", put_in)


def put_in(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = MARK.sub(rf"\1{listed()}\2", source[0])


def listed() -> str:
    """The model types of transformers, as a model's config.json gives them."""
    return ", ".join(f"`{kind}`" for kind in FAMILIES)
