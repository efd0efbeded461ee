"""Names and packages that are imported when they are first used."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from interbasis.base.errors import InterbasisError
from interbasis.base.lazy import lazy_names, optional_import


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package with the modules `home` (of the name `Thing`) and `tool`."""
    parts = {name: ModuleType(name) for name in ("lazily", "lazily.home", "lazily.tool")}
    parts["lazily"].__path__ = []
    parts["lazily.home"].Thing = 42  # type: ignore[attr-defined]
    for name, module in parts.items():
        monkeypatch.setitem(sys.modules, name, module)
    return parts["lazily"]


def test_names_come_from_their_homes_and_stay(package: ModuleType) -> None:
    get: Callable[[str], Any]
    get, names = lazy_names("lazily", {"Thing": "home", "tool": "tool"})
    assert get("Thing") == 42
    assert package.Thing == 42
    assert get("tool") is sys.modules["lazily.tool"]
    assert names() == ["Thing", "tool"]
    with pytest.raises(AttributeError, match="'lazily' has no attribute 'other'"):
        get("other")


def test_a_missing_package_is_named_with_its_extra() -> None:
    assert optional_import("json", "reading needs json").dumps([]) == "[]"
    with pytest.raises(InterbasisError, match=r"^reading needs it; .*interbasis\[parquet\]"):
        optional_import("no_such_package_anywhere", "reading needs it", "parquet")
