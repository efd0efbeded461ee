"""A small linter for the page's modules: which names are imported, declared and used.

It reads tokens, not a syntax tree: Chromium checks the syntax (see test_javascript.py). Names are told from
properties by what stands around them, and scopes are not told apart: a name counts as used where it occurs
anywhere else in its file.
"""

import re
from dataclasses import dataclass
from pathlib import Path

TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<template>`)
    |(?P<number>\b\d[\w.]*)
    |(?P<name>[A-Za-z_$][\w$]*)
    |(?P<operator>=>|\?\.(?!\d)|\.\.\.|\?\?=?|&&|\|\||[-+*/%&|^!=<>]=+|.)""",
    re.VERBOSE | re.DOTALL,
)
REGEX = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/[a-z]*")
KEYWORDS = set(
    re.findall(
        r"\w+",
        """async await break case catch class const continue default delete do else export extends finally for
        from function get if import in instanceof let new null of return set static super switch this throw
        true false try typeof undefined var void while yield as arguments""",
    )
)
BROWSER = set(
    re.findall(
        r"\w+",
        """Array Boolean Float32Array Float64Array Int16Array Int32Array Intl JSON Map Math Node Number Object
        Path2D RegExp ResizeObserver Set String URLSearchParams Uint32Array Uint8Array Error Infinity NaN atob
        clearTimeout document Image XMLSerializer encodeURIComponent fetch getComputedStyle history
        localStorage location parseInt
        performance requestAnimationFrame setTimeout window""",
    )
)
"""What the page takes from the browser and the language."""


MAX_LINE = 120
"""Characters of a line."""


@dataclass(frozen=True)
class Module:
    """The names of one file."""

    name: str
    imports: dict[str, str]
    """Imported names, with the files they are from."""
    exports: set[str]
    declared: set[str]
    """Functions, classes, constants, parameters and variables."""
    uses: dict[str, int]
    """How often each name occurs that is not a property, its declaration counted."""

    long_lines: tuple[int, ...]
    """Numbers of the lines that are too long."""

    def problems(self) -> list[str]:
        unused = {name for name in self.declared | set(self.imports) if self.uses[name] < 2} - self.exports
        undefined = set(self.uses) - self.declared - set(self.imports) - BROWSER - {"_"}
        return (
            [f"{self.name}: {name} is not used" for name in sorted(unused)]
            + [f"{self.name}: {name} is not defined" for name in sorted(undefined)]
            + [f"{self.name}: line {number} is longer than {MAX_LINE}" for number in self.long_lines]
        )


def tokens(source: str) -> list[str]:
    """Names and operators; of templates what they compute, of other literals a placeholder."""
    found: list[str] = []
    position = 0
    while position < len(source):
        if source[position] == "/" and source[position + 1] not in "/*":
            divides = found and (found[-1] in (")", "]") or re.match(r"[\w\"$]", found[-1]))
            literal = None if divides and found[-1] != "return" else REGEX.match(source, position)
            if literal:
                found.append('"regex"')
                position = literal.end()
                continue
        match = TOKEN.match(source, position)
        assert match
        position = match.end()
        if match.lastgroup == "template":
            inner, position = _template(source, position)
            found += ["(", *inner, ")"]
        elif match.lastgroup in ("string", "number"):
            found.append('"literal"')
        elif match.lastgroup != "space":
            found.append(match.group())
    return found


def _template(source: str, position: int) -> tuple[list[str], int]:
    """The tokens inside ${…} of a template, and where it ends."""
    found: list[str] = []
    while source[position] != "`":
        if source[position] == "\\":
            position += 2
        elif source.startswith("${", position):
            end = _closing_brace(source, position + 2)
            found += ["(", *tokens(source[position + 2 : end]), ")"]
            position = end + 1
        else:
            position += 1
    return found, position + 1


def _closing_brace(source: str, position: int) -> int:
    depth = 0
    while True:
        character = source[position]
        if character == "`":
            _, position = _template(source, position + 1)
            continue
        if character in "\"'":
            match = TOKEN.match(source, position)
            assert match
            position = match.end()
            continue
        if character == "}" and depth == 0:
            return position
        depth += {"{": 1, "}": -1}.get(character, 0)
        position += 1


def read(path: Path) -> Module:
    """The names of a file."""
    source = path.read_text(encoding="utf-8")
    imports = {
        name.strip(): file
        for names, file in re.findall(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";', source, re.MULTILINE)
        for name in names.split(",")
        if name.strip()
    }
    body = re.sub(r'^import \{[^}]*\} from "[^"]*";$', "", source, flags=re.MULTILINE)
    exports = set(re.findall(r"^export (?:async )?(?:function|class|const|let) ([\w$]+)", body, re.MULTILINE))
    words = tokens(body)
    uses = dict.fromkeys(imports, 1)
    for k, word in enumerate(words):
        if _is_name(words, k):
            uses[word] = uses.get(word, 0) + 1
    long_lines = tuple(k for k, line in enumerate(source.split("\n"), 1) if len(line) > MAX_LINE)
    return Module(path.name, imports, exports, _declared(words), uses, long_lines)


def _is_name(words: list[str], k: int) -> bool:
    """Whether a word is a name of its own, neither a keyword nor a property nor a key."""
    word = words[k]
    if not re.match(r"[A-Za-z_$]", word) or word in KEYWORDS:
        return False
    before, after = words[k - 1] if k else "", words[k + 1] if k + 1 < len(words) else ""
    if before in (".", "?."):
        return False
    if after == ":" and before in ("{", ","):
        return False  # a key; {a: b} or a property that is given another name
    return not (_method(words, k))


def _method(words: list[str], k: int) -> bool:
    """A method's own name: name(…) { after a brace."""
    if words[k + 1 : k + 2] != ["("] or (k and words[k - 1] not in ("{", "}", ";", "get", "async", "static")):
        return False
    depth = 0
    for place in range(k + 1, len(words)):
        depth += {"(": 1, ")": -1}.get(words[place], 0)
        if depth == 0:
            return words[place + 1 : place + 2] == ["{"]
    return False


def _declared(words: list[str]) -> set[str]:
    declared: set[str] = set()
    for k, word in enumerate(words):
        if word in ("const", "let"):
            declared |= _pattern(words, k + 1, {"of", "in", ";"})
        elif word in ("function", "class") and re.match(r"[A-Za-z_$]", words[k + 1]):
            declared.add(words[k + 1])
        elif word == "=>":
            declared |= _parameters(words, k - 1) if words[k - 1] == ")" else {words[k - 1]}
        elif word == "{" and k and words[k - 1] == ")":
            declared |= _parameters(words, k - 1)
    return declared


def _parameters(words: list[str], close: int) -> set[str]:
    """The parameters in front of a function's body; none where it is the body of an if or a loop."""
    depth, place = 0, close
    while True:
        depth += {")": 1, "(": -1}.get(words[place], 0)
        if depth == 0:
            break
        place -= 1
    if place and words[place - 1] in ("if", "for", "while", "switch"):
        return set()
    return _pattern(words, place + 1, {")"})


def _pattern(words: list[str], start: int, ends: set[str]) -> set[str]:
    """Names bound by a list of patterns, such as {a, b: c, ...d} = e, [f, g = 1]: those that are new."""
    names, depth, place, skipping = set(), 0, start, 0
    while place < len(words):
        word = words[place]
        if depth == 0 and word in ends:
            break
        if word == "=" and not skipping:
            skipping = depth + 1  # the value of what stands before it
        if word in "{[(":
            depth += 1
        elif word in "}])":
            depth -= 1
            skipping = skipping if depth >= skipping - 1 and skipping else 0
            if depth < 0:
                break
        elif word == "," and depth == skipping - 1:
            skipping = 0
        elif not skipping and re.match(r"[A-Za-z_$]", word) and words[place + 1 : place + 2] != [":"]:
            names.add(word)
        place += 1
    return names - KEYWORDS - {"_"}
