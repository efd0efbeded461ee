"""Display in notebooks: `interbasis.show`, above everything that it shows, is asked by name."""

from importlib import import_module


def notebook_html(value: object) -> str:
    """Return the HTML that a notebook shows in place of a result or a graph."""
    return str(import_module("interbasis.show.notebook").html(value))
