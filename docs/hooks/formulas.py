"""Formulas as MathML, made while the site is built: $…$ and $$…$$ in a page need no script in the browser."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))


def inline(writer: HTML5Translator, node: nodes.math) -> None:
    writer.body.append(convert(node.astext().strip(), display="inline"))
    raise nodes.SkipNode


def block(writer: HTML5Translator, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="formula">{convert(node.astext().strip(), display="block")}</div>')
    raise nodes.SkipNode
