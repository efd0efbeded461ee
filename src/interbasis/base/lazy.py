"""Names and optional packages that are imported when they are first used."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from interbasis.base.errors import InterbasisError


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    Args:
        package: Its ``__name__``.
        homes: The module, relative to the package, that holds each name; the name may be a module of it, or
            its own.

    Returns:
        The two functions, to be assigned in the package's ``__init__.py``.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{homes[name]}")
        if hasattr(module, name):
            value = getattr(module, name)
        else:
            value = module if homes[name] == name else import_module(f"{module.__name__}.{name}")
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(homes)


def notebook_html(value: object) -> str:
    """Return the HTML that a notebook shows in place of a result or a graph.

    `interbasis.show`, above everything that it shows, is asked by name.
    """
    return str(import_module("interbasis.show.notebook").html(value))


def optional_import(module: str, need: str, extra: str = "hf") -> Any:
    """Import a module of a package that not everybody installs.

    Args:
        module: Its name.
        need: What needs which package, in words.
        extra: The set of optional packages of interbasis that it belongs to.

    Raises:
        InterbasisError: It is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise InterbasisError(f"{need}; install it with: pip install 'interbasis[{extra}]'") from error
