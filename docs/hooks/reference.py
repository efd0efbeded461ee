"""The Python reference, from the docstrings: <!-- api: build, load --> becomes their descriptions."""

import ast
import inspect
import re
import textwrap
from types import ModuleType
from typing import Any

import interbasis

MARK = re.compile(r"<!-- api: ([\w, ]+) -->")
SOURCES = "src/interbasis/"


def on_page_markdown(markdown: str, **_: object) -> str:
    return MARK.sub(lambda found: "\n\n".join(map(described, found[1].split(", "))), markdown)


def described(name: str) -> str:
    """A public name of the package: a heading, its signature, its docstring, and what belongs to it."""
    thing = getattr(interbasis, name)
    head = f"### interbasis.{name} {{ #{name} .api }}"
    if inspect.ismodule(thing):
        return "\n\n".join([head, text(thing), *members_of_module(name, thing)])
    body = of_class(thing) if inspect.isclass(thing) else []
    shown = "" if inspect.isclass(thing) and fields(thing) else signature(thing, name)
    return "\n\n".join([head, shown, text(thing), *body, f"*In `{home(thing)}`.*"])


def members_of_module(name: str, module: ModuleType) -> list[str]:
    parts = []
    for inner in getattr(module, "__all__", None) or own_functions(module):
        thing = getattr(module, inner)
        parts += [
            f"#### {name}.{inner} {{ #{name}.{inner} }}",
            signature(thing, f"{name}.{inner}"),
            text(thing),
        ]
        parts += of_class(thing) if inspect.isclass(thing) else []
    return parts


def own_functions(module: ModuleType) -> list[str]:
    return [
        name
        for name, thing in vars(module).items()
        if inspect.isfunction(thing) and thing.__module__ == module.__name__ and not name.startswith("_")
    ]


def of_class(kind: type) -> list[str]:
    """Fields with what the source says of them, then methods and properties."""
    rows = [f"| `{field}` | `{shown}` | {meaning} |" for field, shown, meaning in fields(kind)]
    parts = ["\n".join(["| field | type and default | meaning |", "|---|---|---|", *rows])] if rows else []
    for name, thing in vars(kind).items():
        inner = thing.__func__ if isinstance(thing, classmethod | staticmethod) else thing
        if name.startswith("_") or not (inspect.isfunction(inner) or isinstance(thing, property)):
            continue
        says = inspect.getdoc(inner)
        if says is None and isinstance(thing, property):
            continue
        shown = f"{name}" if isinstance(thing, property) else f"{name}{spelt(inner)}"
        parts.append(f"`.{shown}`\n:   {textwrap.indent(says or 'No more to say.', '    ').strip()}")
    return parts


def fields(kind: type) -> list[tuple[str, str, str]]:
    """(name, annotation and default, meaning) of a class's fields: the string below one, or its comment."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):
        return []
    lines, body = source.splitlines(), ast.parse(source).body[0].body  # type: ignore[attr-defined]
    found = []
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if node.target.id.startswith("_"):
            continue
        shown = ast.unparse(node.annotation) + (f" = {ast.unparse(node.value)}" if node.value else "")
        meaning = lines[node.end_lineno - 1].partition("  # ")[2]
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            meaning = " ".join(str(after.value.value).split())
        found.append((node.target.id, shown, meaning.replace("|", "\\|")))
    return found


def signature(thing: Any, name: str) -> str:
    if not callable(thing) or (inspect.isclass(thing) and issubclass(thing, Exception)):
        return ""
    return f"```python\n{name}{spelt(thing, wide=True)}\n```"


def spelt(thing: Any, wide: bool = False) -> str:
    """A signature with plain names of types; one parameter a line where it would be too long."""
    try:
        found = inspect.signature(thing)
    except (ValueError, TypeError):
        return "(…)"
    parameters = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    found = found.replace(parameters=parameters)
    if inspect.isclass(thing):
        found = found.replace(return_annotation=found.empty)
    result = plain(str(found))
    if not wide or len(result) < 80:
        return result
    parts, star = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            parts.append("*")
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        parts.append(plain(str(parameter)))
    returned = "" if found.return_annotation is found.empty else result[result.rindex(") ->") + 1 :]
    return "(\n" + "".join(f"    {part},\n" for part in parts) + ")" + returned


def plain(shown: str) -> str:
    """`interbasis.graph.InteractionGraph` as `InteractionGraph`, and so on."""
    shown = re.sub(r"<factory>", "…", shown)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", shown).replace("'", '"')


def text(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


def home(thing: Any) -> str:
    return SOURCES + thing.__module__.removeprefix("interbasis.").replace(".", "/") + ".py"
