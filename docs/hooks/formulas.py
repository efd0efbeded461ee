"""Formulas as MathML, made while the site is built: $…$ and $$…$$ in a page need no script in the browser.

`pymdownx.arithmatex` finds the formulas and leaves \\(…\\) and \\[…\\] in the page; what stands in them is
turned into MathML here, which browsers draw themselves.
"""

import html
import re

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)


def on_page_content(content: str, **_: object) -> str:
    content = DISPLAY.sub(lambda found: f'<div class="formula">{_mathml(found[1], "block")}</div>', content)
    return INLINE.sub(lambda found: _mathml(found[1], "inline"), content)


def _mathml(formula: str, display: str) -> str:
    return convert(html.unescape(formula).strip(), display=display)
