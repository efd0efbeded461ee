"""The public surface is documented: Args where there are several, Returns and Raises where it does so."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import interbasis

# What interbasis.__all__ names, and what the modules among it name in turn.


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in interbasis.__all__:
        thing = getattr(interbasis, name)
        if inspect.isfunction(thing):
            yield name, thing
        elif inspect.ismodule(thing):
            inner = getattr(thing, "__all__", None) or [
                key
                for key, value in vars(thing).items()
                if getattr(value, "__module__", "") == thing.__name__
            ]
            for key in inner:
                if inspect.isfunction(getattr(thing, key)) and not key.startswith("_"):
                    yield f"{name}.{key}", getattr(thing, key)


FUNCTIONS = dict(public_functions())


def sections(function: Callable[..., Any]) -> dict[str, str]:
    """The parts of a Google-style docstring, by their heads."""
    parts = re.split(r"^(Args|Returns|Yields|Raises):\n", inspect.getdoc(function) or "", flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def own_statements(function: Callable[..., Any]) -> list[ast.AST]:
    """The statements of a function, without those of functions inside it."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    waiting: list[ast.AST] = [*tree.body]
    statements = []
    while waiting:
        node = waiting.pop()
        statements.append(node)
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))
    return statements


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_are_documented(name: str) -> None:
    parameters = list(inspect.signature(FUNCTIONS[name]).parameters)
    documented = re.findall(
        r"^ {4}\**(\w+)(?: \(.*\))?:", sections(FUNCTIONS[name]).get("Args", ""), re.MULTILINE
    )
    if len(parameters) >= 2 or documented:
        assert documented == parameters


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_documented(name: str) -> None:
    returned = inspect.signature(FUNCTIONS[name]).return_annotation
    several = len(inspect.signature(FUNCTIONS[name]).parameters) >= 2
    if several and returned not in (None, "None", inspect.Signature.empty):
        assert {"Returns", "Yields"} & set(sections(FUNCTIONS[name]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_documented(name: str) -> None:
    raised = {
        node.exc.func.id
        for node in own_statements(FUNCTIONS[name])
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and isinstance(node.exc.func, ast.Name)
    }
    documented = set(re.findall(r"^ {4}(\w+):", sections(FUNCTIONS[name]).get("Raises", ""), re.MULTILINE))
    assert raised <= documented
