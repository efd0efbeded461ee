"""The page in a real Chromium: looked at, pointed at, typed at; no request to others, no console errors."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.features import ExamplesResult, FeaturesResult
from interbasis.analysis.stored_results import load_result
from interbasis.graph.store import load
from interbasis.run.run import open_run
from interbasis.show.viewer import ViewerServer, write_page
from interbasis.show.viewer.notes import Notes
from show.viewer.conftest import serving
from show.viewer.looking import EVIL, drawn, hash_with, ink, opened, settle, slide

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_it_opens_with_the_graph_and_says_what_is_shown(
    browser: "Browser", server: ViewerServer, lib: Path
) -> None:
    with opened(browser, server.url) as page:
        assert page.title() == "LIB of modadd · interbasis"
        assert page.locator(".column").count() == 4
        assert page.locator(".node").count() == 3 * 24 + 1
        required = load_result(lib, AblationResult).counts
        assert 0 < drawn(page) <= sum(required.values())
        assert "edges drawn" in page.locator(".status").inner_text()
        assert ink(page, ".edges:not(.over)") > 2000


def test_pointing_at_a_feature_lights_its_paths(browser: "Browser", server: ViewerServer) -> None:
    with opened(browser, server.url) as page:
        assert ink(page, ".edges.over") == 0
        page.locator(".column").nth(1).locator(".node").first.hover()
        settle(page)
        assert ink(page, ".edges.over") > 300
        lit = page.locator(".node.on-path").count()
        assert 1 < lit < page.locator(".node").count()
        page.mouse.move(640, 5)
        settle(page)
        assert ink(page, ".edges.over") == 0


def test_sliders_act_at_once(browser: "Browser", server: ViewerServer, lib: Path) -> None:
    with opened(browser, server.url + "#by=count&count=10&output=show&nodes=120") as page:
        assert drawn(page) == 30
        slide(page, "count", 1000)
        edges = load(lib).edges
        assert drawn(page) == sum(
            int((matrix > 0).sum()) for matrix in (edges[0][1:, 1:], edges[1][1:, 1:], edges[2][:, 1:])
        )
        page.get_by_role("button", name="share", exact=True).click()
        slide(page, "share", 50)
        few = drawn(page)
        slide(page, "share", 99)
        assert few < drawn(page)
        page.get_by_role("button", name="needed").click()
        settle(page)
        needed = drawn(page)
        assert needed == sum(load_result(lib, AblationResult).counts.values())
        slide(page, "loss", 4)
        assert drawn(page) < needed
        slide(page, "nodes", 5)
        assert page.locator(".node").count() == 20
        assert hash_with(page, "nodes=5")
        page.reload()
        page.wait_for_selector(".node")
        assert page.locator(".node").count() == 20


def test_scales_constant_output_and_layers(browser: "Browser", server: ViewerServer) -> None:
    with opened(browser, server.url) as page:
        before = ink(page, ".edges:not(.over)")
        page.get_by_label("Line width and opacity show").select_option("root")
        settle(page)
        assert ink(page, ".edges:not(.over)") > before
        page.get_by_label("Line width and opacity show").select_option("log")
        page.get_by_label("Each section on its own scale").uncheck()
        page.get_by_label("Show the constant").check()
        settle(page)
        assert page.locator(".node.constant").count() == 3
        assert page.get_by_label("All outputs of output as one").count() == 1
        page.get_by_label("Last layer").first.select_option("hide")
        settle(page)
        assert page.locator(".column").count() == 3
        page.get_by_label("First layer").select_option("1")
        settle(page)
        assert page.locator(".column-title bdi").all_inner_texts() == ["mlp_in.0", "unembed"]


def test_a_feature_opens_with_its_numbers(browser: "Browser", server: ViewerServer, lib: Path) -> None:
    graph = load(lib)
    feature = load_result(lib, FeaturesResult).layers["mlp_in.0"].by_index()[2]
    examples = {one.index: one for one in load_result(lib, ExamplesResult).layers["mlp_in.0"]}
    with opened(browser, server.url) as page:
        page.locator(".column").nth(1).locator(".node").nth(1).click()
        panel = page.locator(".panel:not(.trace-panel)")
        assert panel.locator("h2").inner_text() == feature.label
        assert panel.locator(".bars th").first.inner_text() == feature.fourier.terms[0].text
        strongest = graph.edges[0][2, 1:].max().item()
        assert f"{strongest:.3g}" in panel.inner_text()
        for title in (
            "Comes from",
            "Goes to",
            "Fourier terms",
            "Direct effect on the output",
            "Activations",
            "Examples from the data",
        ):
            assert panel.get_by_text(title, exact=False).count() >= 1
        assert panel.locator(".token.active").count() == sum(len(band.examples) for band in examples[2].bands)
        panel.locator(".edges-table .link").first.click()
        settle(page)
        assert "attn_in.0" in panel.locator(".where").inner_text()
        page.keyboard.press("Escape")
        assert not panel.is_visible()


def test_search_by_label_layer_and_token(browser: "Browser", server: ViewerServer, lib: Path) -> None:
    layer = load_result(lib, FeaturesResult).layers["mlp_in.0"]
    words = layer.features[2].label.split()[-1]
    matches = [feature.index for feature in layer.features if words in feature.label]
    assert 0 < len(matches) < len(layer.features)
    with opened(browser, server.url + "#nodes=200") as page:
        page.keyboard.press("/")
        page.keyboard.type(f"{words} mlp_in")
        settle(page)
        assert page.locator(".found-list button").count() == len(matches)
        assert page.locator(".node.found").count() == len(matches)
        page.keyboard.press("Enter")
        settle(page)
        assert f"mlp_in.0 · feature {matches[0]}" in page.locator(".where").inner_text()
        token = layer.features[2].effects.up[0].name
        page.keyboard.press("/")
        page.keyboard.type(f"unembed {token}")
        settle(page)
        lines = page.locator(".found-list button").all_inner_texts()
        assert any(f"token {token}" in line for line in lines)
        page.keyboard.press("/")
        page.get_by_role("searchbox").fill("no such thing")
        settle(page)
        assert "No feature" in page.locator(".found-list").inner_text()


def test_pins_names_and_groups_are_saved_and_come_back(
    browser: "Browser", server: ViewerServer, lib: Path
) -> None:
    with opened(browser, server.url + "#nodes=5") as page:
        page.locator(".column").nth(1).locator(".node").nth(4).click()
        page.get_by_role("button", name="Pin", exact=True).click()
        page.get_by_label("Name", exact=True).fill(EVIL)
        page.keyboard.press("Enter")
        page.get_by_label("Group", exact=True).fill("carry")
        page.keyboard.press("Enter")
        page.get_by_text("Saved to the run.").wait_for()
        page.keyboard.press("Escape")
        slide(page, "nodes", 2)
        assert page.locator(".node.pinned").count() == 1
        assert hash_with(page, "nodes=2")
        page.reload()
        page.wait_for_selector(".node.pinned")
        assert page.locator(".node.pinned .label").inner_text() == EVIL
        assert page.evaluate("window.hacked") is None
    notes = load_result(lib, Notes)
    place = {"layer": "mlp_in.0", "index": 5}
    assert notes.model_dump() == {
        "pinned": [place],
        "names": [place | {"name": EVIL}],
        "groups": [{"name": "carry", "members": [place]}],
    }


def test_two_runs_stand_side_by_side_with_the_same_sliders(browser: "Browser", lib: Path, pca: Path) -> None:
    with (
        serving(lib, pca) as server,
        opened(browser, server.url + "#by=count&count=20&output=hide&nodes=200") as page,
    ):
        assert page.locator(".graph").count() == 2
        left, right = (page.locator(".graph").nth(k).bounding_box() for k in range(2))
        assert left["x"] + left["width"] <= right["x"] + 1
        assert drawn(page, 0) == drawn(page, 1) == 40
        slide(page, "count", 700)
        assert drawn(page, 0) == drawn(page, 1) > 40
        page.get_by_label("Each section on its own scale").uncheck()
        settle(page)
        most = page.evaluate(
            "interbasis.parts.map(({view}) => Math.max(...view.sections.map((s) => s.weights[0])))"
        )
        assert max(most) == pytest.approx(1)
        assert min(most) < 0.5  # one scale for both: the features of PCA are smaller
        page.locator(".graph").nth(1).locator(".node").first.click()
        assert "PCA" in page.locator(".where").inner_text()


def test_one_file_works_from_disk_and_hands_out_its_notes(
    browser: "Browser", lib: Path, tmp_path: Path
) -> None:
    file = write_page([lib], tmp_path / "lib.html")
    with opened(browser, file.as_uri()) as page:
        page.locator(".column").nth(2).locator(".node").first.click()
        page.get_by_role("button", name="Pin", exact=True).click()
        page.get_by_text("Notes", exact=True).click()
        with page.expect_download() as download:
            page.get_by_role("button", name="Download notes").click()
        download.value.save_as(tmp_path / "notes.json")
        page.reload()
        page.wait_for_selector(".node.pinned")
    with opened(browser, file.as_uri()) as page:
        assert page.locator(".node.pinned").count() == 0
        page.locator("input[type=file]").set_input_files(tmp_path / "notes.json")
        page.wait_for_selector(".node.pinned")


def test_the_keyboard_is_enough(browser: "Browser", server: ViewerServer) -> None:
    with opened(browser, server.url) as page:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.classList.contains('node')"):
                break
        place = "document.activeElement.dataset.at"
        assert page.evaluate(place) == "0,0"
        page.keyboard.press("ArrowDown")
        assert page.evaluate(place) == "0,1"
        page.keyboard.press("ArrowRight")
        assert page.evaluate(place).startswith("1,")
        assert ink(page, ".edges.over") > 0
        at = page.evaluate(place)
        page.keyboard.press("Enter")
        settle(page)
        assert page.locator(".panel:not(.trace-panel)").is_visible()
        page.keyboard.press("Escape")
        settle(page)
        assert not page.locator(".panel:not(.trace-panel)").is_visible()
        assert page.evaluate(place) == at
        names = page.locator(".node").evaluate_all(
            "(nodes) => nodes.map((n) => n.getAttribute('aria-label'))"
        )
        assert all(names)
        assert "Lambda" in names[0]


def test_a_module_can_be_looked_at_alone(browser: "Browser", server: ViewerServer) -> None:
    with opened(browser, server.url + "#nodes=100&output=hide") as page:
        before = page.locator(".node").count()
        page.locator("button.swatch").nth(1).click()
        settle(page)
        alone = page.locator(".node").count()
        assert 0 < alone < before
        ranks = page.evaluate(
            """interbasis.parts[0].view.columns.flatMap((column) =>
            column.indices.map((index) => interbasis.parts[0].run.module(column.layer, index)))"""
        )
        assert set(ranks) == {1}
        page.get_by_role("button", name="Show all modules").click()
        settle(page)
        assert page.locator(".node").count() == before


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_overlaps_or_sticks_out(browser: "Browser", server: ViewerServer, width: int) -> None:
    with opened(browser, server.url + "#sel=0.1.2") as page:
        page.set_viewport_size({"width": width, "height": 800})
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        overlaps = page.evaluate(
            """() => {
            const boxes = [...document.querySelectorAll(".node")].map((node) => node.getBoundingClientRect());
            return boxes.filter((a, i) => boxes.some((b, j) => i < j && a.left < b.right && b.left < a.right
              && a.top < b.bottom - 0.5 && b.top < a.bottom - 0.5)).length; }"""
        )
        assert overlaps == 0


def test_a_notebook_frame_draws_the_graph(browser: "Browser", lib: Path, tmp_path: Path) -> None:
    file = tmp_path / "notebook.html"
    file.write_text(
        f"<!doctype html><meta charset=utf-8><body>{open_run(lib)._repr_html_()}</body>", encoding="utf-8"
    )
    context = browser.new_context(viewport={"width": 1100, "height": 700})
    try:
        page = context.new_page()
        complaints = []
        page.on(
            "console", lambda message: complaints.append(message.text) if message.type == "error" else None
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(file.as_uri())
        frame = page.frame_locator("iframe")
        frame.locator(".node").first.click()
        frame.locator(".panel h2").wait_for()
        assert complaints == []
    finally:
        context.close()


def test_a_number_in_a_label_is_found_before_one_in_a_token(browser: "Browser", server: ViewerServer) -> None:
    with opened(browser, server.url) as page:
        found = page.evaluate(
            """() => { const { names, run } = interbasis.parts[0];
            const label = run.layers
              .flatMap(({ size }, k) => Array.from({ length: size }, (_, index) => names.known(k, index)))
              .find((text) => /cos\\((\\d+)x/.test(text));
            const number = label.match(/cos\\((\\d+)x/)[1];
            const labels = (hits) => hits.map(({ layer, index }) => names.known(layer, index));
            interbasis.state.set({ q: number });
            const marked = labels(interbasis.parts[0].view.nodes.hits);
            return [number, labels(interbasis.search.find(number)), marked]; }"""
        )
        number, labels, marked = found
        whole = [re.search(rf"(?<!\d){number}(?!\d)", label) is not None for label in labels]
        assert whole[0]
        assert sorted(whole, reverse=True) == whole
        assert marked == [label for label in labels if number in label]


def test_the_strongest_edges_into_each_feature(browser: "Browser", server: ViewerServer) -> None:
    """The fewest with half of what comes into a feature from those shown, four at most."""
    with opened(browser, server.url + "#by=into&into=0.5&nodes=30&output=hide") as page:
        sections = page.evaluate(
            """interbasis.parts[0].view.sections.map((s) => [...s.to.slice(0, s.size)].map((to, e) =>
              [to, s.value[e]]))"""
        )
        few = [[row for row, _ in section] for section in sections]
        assert all(few)
        assert all(section.count(row) <= 4 for section in few for row in section)
        assert "between the features shown" in page.locator(".status").inner_text()
        page.evaluate("interbasis.state.set({ by: 'share', share: 1 })")
        settle(page)
        everything = page.evaluate(
            """interbasis.parts[0].view.sections.map((s) => [...s.to.slice(0, s.size)].map((to, e) =>
              [to, s.value[e]]))"""
        )
    for chosen, edges in zip(sections, everything, strict=True):
        for row in {row for row, _ in chosen}:
            kept = sorted((value for to, value in chosen if to == row), reverse=True)
            into = sorted((value for to, value in edges if to == row), reverse=True)
            assert kept == into[: len(kept)]
            half = sum(value**2 for value in into) / 2
            assert len(kept) == 4 or sum(value**2 for value in kept) >= half * (1 - 1e-6)
            assert sum(value**2 for value in kept[:-1]) < half
