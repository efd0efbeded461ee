"""The run's page as somebody new sees it: every point by clicking, pointing or typing in a real Chromium."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from interbasis.analysis.stages.features import ExamplesResult
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.analysis.stored_results import load_result
from interbasis.graph.store import load
from interbasis.show.viewer import ViewerServer
from show.viewer.conftest import serving
from show.viewer.looking import hash_with, ink, opened, settle

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SECTIONS = "interbasis.parts[0].view.sections"


def titles(page: "Page") -> list[str]:
    return page.locator(".column-title bdi").all_inner_texts()


def test_layer_norms_are_folded_and_shown_on_demand(
    browser: "Browser", stories: Path, stories_page: str
) -> None:
    graph = load(stories)
    with opened(browser, stories_page + "#by=count&count=40&nodes=60") as page:
        folded = ["attn_in.0", "mlp_in.0", "attn_in.1", "mlp_in.1", "unembed"]
        assert titles(page) == folded
        assert "layer norms folded away" in page.locator(".status").inner_text()
        page.get_by_role("button", name="Show ln2.0, ln2_out.0").click()
        settle(page)
        assert titles(page) == ["attn_in.0", "ln2.0", "ln2_out.0", *folded[1:]]
        assert hash_with(page, "open=")
        page.get_by_role("button", name="Fold ln2.0, ln2_out.0").click()
        settle(page)
        assert titles(page) == folded
        page.get_by_label("Show layer norms").check()
        settle(page)
        assert titles(page) == graph.layer_names


def test_a_folded_line_follows_the_strongest_edges(
    browser: "Browser", stories: Path, stories_page: str
) -> None:
    """Every line from attn_in.0 ends where the strongest edges of ln2.0 and ln2_out.0 lead."""
    graph = load(stories)
    first = graph.layer_names.index("attn_in.0")

    def follow(k: int, feature: int) -> int:
        return int(graph.edges[k][1:, feature].argmax()) + 1

    expected: dict[tuple[int, int], float] = {}
    strengths, places = graph.inner_edges(first).double().flatten().topk(30)
    columns = graph.layers[first].features - 1
    for strength, place in zip(strengths.tolist(), places.tolist(), strict=True):
        source, middle = place % columns + 1, place // columns + 1
        after = follow(first + 1, middle)
        if after == 1:  # the variance goes to all features and is followed to none
            continue
        end = follow(first + 2, after)
        expected[source, end] = (expected.get((source, end), 0) ** 2 + strength**2) ** 0.5
    with opened(browser, stories_page + "#by=count&count=30&nodes=200") as page:
        lines = page.evaluate(
            f"""() => {{ const s = {SECTIONS}[0], [a, b] = interbasis.parts[0].view.columns;
            return Array.from({{ length: s.size }}, (_, e) =>
              [a.indices[s.from[e]], b.indices[s.to[e]], s.value[e]]); }}"""
        )
    assert {(a, b): value for a, b, value in lines} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("width", [1440, 1920])
def test_boxes_have_numbers_and_room_for_their_labels(
    browser: "Browser", stories_page: str, width: int
) -> None:
    with opened(browser, stories_page) as page:
        page.set_viewport_size({"width": width, "height": 900 if width < 1900 else 1080})
        page.reload()
        page.wait_for_selector(".node")
        settle(page)
        assert page.locator(".column").first.locator(".number").first.inner_text() == "1"
        cut = page.evaluate(
            """[...document.querySelectorAll(".node .label")].filter((l) => l.scrollWidth > l.clientWidth + 1
            && l.textContent.length < 22).length"""
        )
        assert cut == 0
        stage = page.locator(".stage").bounding_box()
        boxes = [page.locator(".node").nth(k).bounding_box() for k in (0, page.locator(".node").count() - 1)]
        assert boxes[1]["x"] + boxes[1]["width"] > stage["x"] + 0.9 * stage["width"]  # the space is used
        lowest = page.evaluate(
            """Math.max(...[...document.querySelectorAll(".node")]
            .map((n) => n.getBoundingClientRect().bottom))"""
        )
        assert lowest > stage["y"] + 0.85 * stage["height"]


def test_tooltips_say_the_whole_label_and_lines_their_weight(
    browser: "Browser", lib: Path, server: ViewerServer
) -> None:
    with opened(browser, server.url) as page:
        tip = page.locator(".tip")
        page.locator(".column").nth(1).locator(".node").first.hover()
        settle(page)
        assert "mlp_in.0 feature 1" in tip.inner_text()
        assert "%" in tip.inner_text()  # the label with its share, which the box leaves out
        x, y, value = page.evaluate(
            f"""() => {{ const s = {SECTIONS}[0];
            const r = document.querySelector(".stage").getBoundingClientRect();
            return [r.left + (s.left + s.right) / 2, r.top + (s.y0[s.from[0]] + s.y1[s.to[0]]) / 2,
              s.value[0]]; }}"""
        )
        page.mouse.move(x, y)
        settle(page)
        assert f"Ê = {value:.4g}" in tip.inner_text()
        assert ink(page, ".edges.over") > 50
        page.mouse.move(x, 5)
        settle(page)
        assert not tip.is_visible()


def test_colours_of_in_and_out_are_no_modules_colours(browser: "Browser", server: ViewerServer) -> None:
    for scheme in ("light", "dark"):
        with opened(browser, server.url, color_scheme=scheme) as page:
            colours = page.evaluate(
                """() => { const s = getComputedStyle(document.documentElement);
                return ["--incoming", "--outgoing", ...Array.from({ length: 8 }, (_, k) => `--module-${k}`)]
                  .map((name) => s.getPropertyValue(name).trim()); }"""
            )
            assert len(set(colours)) == 10
            key = page.locator(".graph .key")
            assert not key.is_visible()
            page.locator(".node").first.click()
            settle(page)
            assert key.inner_text().split() == ["comes", "from", "goes", "to"]
            assert key.bounding_box()["y"] + key.bounding_box()["height"] <= 800  # in sight


def test_escape_clears_and_nothing_stays_lit(browser: "Browser", server: ViewerServer) -> None:
    with opened(browser, server.url + "#module=1") as page:
        page.locator(".node").first.click()
        settle(page)
        page.keyboard.press("Escape")
        page.mouse.move(640, 5)
        settle(page)
        assert not page.locator(".panel").first.is_visible()
        assert ink(page, ".edges.over") == 0
        page.keyboard.press("Escape")
        settle(page)
        assert page.evaluate("interbasis.state.get('module')") == -1


def test_the_wheel_and_the_keys_zoom(browser: "Browser", server: ViewerServer) -> None:
    with opened(browser, server.url) as page:
        box = page.locator(".node").first.bounding_box()
        page.mouse.move(700, 400)
        page.mouse.wheel(0, -300)
        settle(page)
        larger = page.locator(".node").first.bounding_box()
        assert larger["width"] > box["width"] * 1.1
        assert hash_with(page, "zoom=1.15")
        page.keyboard.press("0")
        settle(page)
        assert page.locator(".node").first.bounding_box()["width"] == box["width"]
        page.keyboard.press("-")
        settle(page)
        assert page.locator(".node").first.bounding_box()["width"] < box["width"]


def test_help_opens_with_a_question_mark(browser: "Browser", server: ViewerServer) -> None:
    with opened(browser, server.url) as page:
        page.keyboard.press("?")
        assert page.get_by_role("dialog", name="Help").is_visible()
        assert "zoom" in page.get_by_role("dialog").inner_text()
        page.keyboard.press("Escape")
        assert not page.get_by_role("dialog").is_visible()
        page.get_by_role("button", name="Help").click()
        assert page.get_by_role("dialog").is_visible()


def test_pinned_features_are_a_subgraph_with_groups_as_one_node(
    browser: "Browser", lib: Path, server: ViewerServer
) -> None:
    graph = load(lib)
    with opened(browser, server.url + "#nodes=6&output=hide") as page:
        for column, row in ((0, 0), (0, 1), (1, 0)):
            page.locator(".column").nth(column).locator(".node").nth(row).click()
            page.keyboard.press("p")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Pinned", exact=True).click()
        nodes = page.locator(".subgraph-node")
        assert nodes.count() == 3
        lines = page.locator(".subgraph-line title").all_text_contents()
        assert any(f"Ê = {graph.edges[0][1, 1].item():.4g}" in line for line in lines)
        page.evaluate("[0, 1].forEach((k) => interbasis.parts[0].notes.group(0, k + 1, 'pair'))")
        settle(page)
        assert nodes.count() == 2
        together = graph.edges[0][1, 1:3].square().sum().sqrt().item()
        (line,) = page.locator(".subgraph-line title").all_text_contents()
        assert f"{together:.4g}" in line
        page.get_by_role("button", name="Group pair, 2 features").click()
        settle(page)
        assert nodes.count() == 3  # opened
        page.get_by_role("button", name="Unpin all").click()
        assert nodes.count() == 0


def test_module_numbers_are_those_of_the_result(browser: "Browser", lib: Path, server: ViewerServer) -> None:
    stored = load_result(lib, ModulesResult)
    with opened(browser, server.url + "#nodes=60") as page:
        shown = page.locator("button.swatch").all_inner_texts()
        assert [int(text.split()[0]) for text in shown] == list(range(len(shown)))
        module = stored.find_module("mlp_in.0", 1)
        page.locator(".column").nth(1).locator(".node").first.click()
        assert re.search(rf"Module\s+{module}\b", page.locator(".panel .facts").first.inner_text())


def test_outputs_stand_in_order_with_their_names(browser: "Browser", server: ViewerServer) -> None:
    with opened(browser, server.url + "#output=show&sort=strength&nodes=20") as page:
        labels = page.locator(".column").last.locator(".node").all_inner_texts()
        assert [label.split("\n")[-1] for label in labels] == [f"output {k}" for k in range(20)]


def test_curves_have_axes(browser: "Browser", server: ViewerServer) -> None:
    with opened(browser, server.url + "#tab=curves") as page:
        chart = page.locator("figure.curve svg").first
        texts = chart.locator("text").all_text_contents()
        assert "edges kept" in texts
        assert "accuracy" in texts
        ticks = chart.locator(".tick-y").all_text_contents()
        assert len(ticks) >= 3
        assert chart.locator("line.axis-line").count() == 2


def test_search_finds_tokens_inside_examples(browser: "Browser", stories: Path, stories_page: str) -> None:
    examples = load_result(stories, ExamplesResult).layers["mlp_in.1"]
    texts = {
        one.index: " ".join("".join(e.tokens) for b in one.bands for e in b.examples) for one in examples
    }
    with_word = {index for index, text in texts.items() if "garden" in text}
    assert with_word
    with opened(browser, stories_page) as page:
        page.keyboard.press("/")
        page.keyboard.type("mlp_in.1 garden")
        settle(page)
        lines = page.locator(".found-list button").all_inner_texts()
        found = {int(re.search(r"feature (\d+)", line.split("\n")[-1])[1]) for line in lines}
        assert with_word <= found


def test_matching_features_of_two_runs(browser: "Browser", lib: Path, pca: Path) -> None:
    with serving(lib, pca) as server, opened(browser, server.url + "#output=hide&nodes=10") as page:
        page.set_viewport_size({"width": 1440, "height": 900})
        settle(page)
        first, second = (page.locator(".graph").nth(k) for k in range(2))
        first.locator(".column").nth(1).locator(".node").first.hover()
        settle(page)
        assert "overlap" in page.locator(".tip").inner_text()
        assert second.locator(".node.matched").count() == 1
        first.locator(".column").nth(1).locator(".node").first.click()
        page.locator(".panel .match .link").click()
        settle(page)
        assert "PCA" in page.locator(".where").first.inner_text()
        page.keyboard.press("Escape")
        settle(page)
        for graph in (first, second):
            stage, last = graph.locator(".stage").bounding_box(), graph.locator(".node").last.bounding_box()
            clipped = last["x"] + last["width"] > stage["x"] + stage["width"]
            assert graph.locator(".more").is_visible() == clipped
            assert not clipped
