"""The Python reference, from the docstrings: <!-- api: build, load --> becomes their descriptions."""

import ast
import importlib
import inspect
import re
import textwrap
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx

MARK = re.compile(r"<!-- api: ([\w., ]+) -->")
SECTION = re.compile(r"^(Args|Returns|Yields|Raises):\n", re.MULTILINE)
ENTRY = re.compile(r"^(\*{0,2}\w+): ")
INTERNAL = {
    "BuildConfig": {"kind", "variance_floor", "jacobian_floor"},
    "General": {"to", "tensors", "at_zero", "batch_sums", "moments", "attributions", "signed_attributions"},
    "LayerBasis": {"identity", "first_feature"},
    "Network": {"arrange", "remake", "modulus", "finish", "output_layer", "activations_at"},
    "NodeLayer": {"first_coordinate"},
    "Run": {"section_indices", "model", "given_network", "given_model"},
    "Section": {"direct", "outputs", "positions_out", "count_out", "features_in", "shapes", "tensors", "to"},
}
"""Members that the package itself uses; they are public in the code, and no part of the reference."""


def setup(app: Sphinx) -> None:
    app.connect("source-read", put_in)


def put_in(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = MARK.sub(lambda found: "\n\n".join(map(described, found[1].split(", "))), source[0])


def described(name: str) -> str:
    """A public name of the package: a heading, its signature, its docstring, and what belongs to it."""
    package, _, name = name.rpartition(".")
    package = package or "interbasis"
    thing = getattr(importlib.import_module(package), name, None) or importlib.import_module(
        f"{package}.{name}"
    )
    head = f'<span id="{name}"></span>\n\n### {package}.{name}'
    if inspect.ismodule(thing):
        return "\n\n".join([head, text(thing), *members_of_module(name, thing)])
    body = of_class(thing) if inspect.isclass(thing) else []
    return "\n\n".join([head, signature(thing, name), text(thing), *body])


def members_of_module(name: str, module: ModuleType) -> list[str]:
    parts = []
    for inner in getattr(module, "__all__", None) or own_functions(module):
        thing = getattr(module, inner)
        parts += [
            f'<span id="{name}.{inner}"></span>\n\n#### {name}.{inner}',
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
        if hidden(kind, name) or not (inspect.isfunction(inner) or isinstance(thing, property)):
            continue
        says = text(inner)
        if not says:
            continue
        shown = f"{name}" if isinstance(thing, property) else f"{name}{spelt(inner)}"
        parts.append(f"`.{shown}`\n:   {textwrap.indent(says, '    ').strip()}")
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
        if hidden(kind, node.target.id):
            continue
        value, described = default(node.value)
        shown = annotation(node.annotation) + (f" = {value}" if value not in ("", "None") else "")
        meaning = lines[node.end_lineno - 1].partition("  # ")[2] or described
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            meaning = " ".join(str(after.value.value).split())
        found.append((node.target.id, shown.replace("|", "\\|"), meaning.replace("|", "\\|")))
    return found


def hidden(kind: type, name: str) -> bool:
    return name.startswith("_") or name in INTERNAL.get(kind.__name__, ())


def annotation(node: ast.expr) -> str:
    """A type as a reader needs it: without the bounds of `Annotated`, and without quotes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp):
        return f"{annotation(node.left)} | {annotation(node.right)}"
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated":
        assert isinstance(node.slice, ast.Tuple)
        return annotation(node.slice.elts[0])
    return ast.unparse(node)


def default(node: ast.expr | None) -> tuple[str, str]:
    """A field's default and, of pydantic's `Field`, the description; empty where there is none."""
    if node is None:
        return "", ""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("Field", "field"):
        return ast.unparse(node), ""
    given = {word.arg: word.value for word in node.keywords}
    value = node.args[0] if node.args else given.get("default")
    described = given.get("description")
    return (
        ast.unparse(value) if value else {"list": "[]", "dict": "{}"}.get(_factory(given), ""),
        str(described.value) if isinstance(described, ast.Constant) else "",
    )


def _factory(given: dict[str | None, ast.expr]) -> str:
    return ast.unparse(given["default_factory"]) if "default_factory" in given else ""


def signature(thing: Any, name: str) -> str:
    """How it is called; the fields of a class say that themselves."""
    if inspect.isclass(thing) and (fields(thing) or "__init__" not in vars(thing)):
        return ""
    return f"```python\n{name}{spelt(thing, wide=True)}\n```"


def spelt(thing: Any, wide: bool = False) -> str:
    """The signature as the source spells it; one parameter a line where it would be too long."""
    function = thing.__init__ if inspect.isclass(thing) else inspect.unwrap(thing)
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef)
    parts = [part.replace("'", '"') for part in parameters(node.args)]
    returned = f" -> {annotation(node.returns)}" if node.returns and not inspect.isclass(thing) else ""
    short = f"({', '.join(parts)}){returned}"
    if not wide or len(short) < 80:
        return short
    return "(\n" + "".join(f"    {part},\n" for part in parts) + f"){returned}"


def parameters(arguments: ast.arguments) -> list[str]:
    """Every parameter with its type and default, self and cls left out, / and * where they stand."""
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    parts = [parameter(one, default) for one, default in zip(plain, defaults, strict=True)]
    if arguments.posonlyargs:
        parts.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg:
        parts.append("*" + parameter(arguments.vararg))
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [
        parameter(one, default)
        for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        parts.append("**" + parameter(arguments.kwarg))
    return [part for part in parts if part not in ("self", "cls")]


def parameter(one: ast.arg, default: ast.expr | None = None) -> str:
    typed = f"{one.arg}: {annotation(one.annotation)}" if one.annotation else one.arg
    return typed if default is None else f"{typed}{' = ' if one.annotation else '='}{ast.unparse(default)}"


def text(thing: Any) -> str:
    """The docstring as Markdown: sections in Google's style (Args, Returns, Raises) become lists."""
    parts = SECTION.split(inspect.getdoc(thing) or "")
    sections = (f"**{head}**\n\n{as_list(body)}" for head, body in zip(parts[1::2], parts[2::2], strict=True))
    return "\n\n".join([parts[0].rstrip(), *sections])


def as_list(body: str) -> str:
    """The entries of a section, `name: text`, as a list; text without names as it is."""
    lines = textwrap.dedent(body).strip().splitlines()
    if not ENTRY.match(lines[0]):
        return "\n".join(lines)
    return "\n".join(ENTRY.sub(r"- `\1`: ", line) for line in lines)
