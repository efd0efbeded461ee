"""All messages of errors, warnings and progress in the source, as templates: `python tests/messages.py`
writes them to messages.txt, to be read by a person whenever the test says that they changed.
"""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
FILE = Path(__file__).with_name("messages.txt")
LOGGED = ("logger.info", "logger.warning", "warnings.warn")


def messages() -> str:
    """The messages, a line each, in alphabetical order; values are in braces."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = ast.unparse(node.func)
            if name.endswith("Error") or name in (*LOGGED, "Explained"):
                reason = " ({reason})" if name == "Explained" else ""
                remedies = [template(option.value) for option in node.keywords if option.arg == "remedy"]
                found.add(" ".join("; ".join([template(node.args[0]) + reason, *remedies]).split()))
    return "\n".join(sorted(text for text in found if " " in text and not is_value(text))) + "\n"


def template(node: ast.expr) -> str:
    """The text of an expression, its values in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    return "{" + ast.unparse(node) + "}"


def is_value(text: str) -> bool:
    """Whether a message is one value, made elsewhere."""
    return text.startswith("{") and text.endswith("}") and text.count("{") == 1


if __name__ == "__main__":
    FILE.write_text(messages(), encoding="utf-8")
