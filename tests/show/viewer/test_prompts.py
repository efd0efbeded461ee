"""Prompts on the page, in a real Chromium, on what `interbasis trace` wrote."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
import torch

import interbasis
from attribution_schemas import complaints
from interbasis.analysis.stages.trace import TraceResult
from interbasis.analysis.stored_results import load_named
from interbasis.analysis.traces.records import Trace
from interbasis.run.run import open_run
from interbasis.show.viewer import ViewerServer, write_page
from show.viewer import runs
from show.viewer.looking import hash_with, opened, settle

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def trace(stories: Path) -> Trace:
    (result,) = load_named(stories, TraceResult).values()
    return result.trace


def test_a_prompt_is_listed_and_drawn_with_what_it_says_first(
    browser: "Browser", stories_page: str, trace: Trace
) -> None:
    with opened(browser, stories_page) as page:
        page.get_by_role("button", name="Traces").click()
        settle(page)
        assert trace.prompt in page.locator(".trace-choice").inner_text()
        assert page.locator(".trace-head p").first.inner_text() == trace.summary
        assert page.locator(".trace-token").count() == len(trace.tokens)
        layers = page.locator(".layer-name").all_text_contents()
        assert layers == ["target", "unembed", "mlp_in.1", "attn_in.1", "mlp_in.0", "attn_in.0"]
        assert page.locator(".trace-node.feature text").first.text_content()
        signs = {page.locator(f".trace-edge.{kind}").count() > 0 for kind in ("positive", "negative")}
        assert signs == {True}
        heights = page.evaluate(
            """["mlp_in.1", "attn_in.0"].map((layer) => document.querySelector(
            `.trace-node[data-name^="${layer}:"]`).getBoundingClientRect().y)"""
        )
        assert heights[0] < heights[1]


def test_edges_through_folded_layers_follow_the_chain_rule(
    browser: "Browser", stories_page: str, trace: Trace
) -> None:
    """The same sums as products of the stored edges, layer by layer, over what is between."""
    nodes = {node.name: node for node in trace.nodes}
    inner = {(e.source, e.target): e.weight for e in trace.edges}
    by_source: dict[str, list[tuple[str, float]]] = {}
    for (source, target), weight in inner.items():
        by_source.setdefault(source, []).append((target, weight))

    def ends(name: str) -> dict[str, float]:
        total: dict[str, float] = {}
        for target, weight in by_source.get(name, ()):
            if target in nodes and nodes[target].layer.startswith(("ln1", "ln2", "ln_final")):
                for end, onward in ends(target).items():
                    total[end] = total.get(end, 0) + weight * onward / nodes[target].activation
            else:
                total[target] = total.get(target, 0) + weight
        return total

    with opened(browser, stories_page + "#tab=prompts&marks=100000") as page:
        shown = page.evaluate("interbasis.traces.shown.edges.map((e) => [e.source, e.target, e.weight])")
    sources = {source for source, _, _ in shown if source in nodes}
    assert len(sources) > 5
    for name in sources:
        told = {target: weight for source, target, weight in shown if source == name}
        assert told == pytest.approx(ends(name), rel=1e-6, abs=1e-9)


def test_a_node_opens_with_both_lists_and_the_runs_feature(
    browser: "Browser", stories_page: str, trace: Trace
) -> None:
    node = max((one for one in trace.nodes if one.layer == "unembed"), key=lambda one: one.influence)
    with opened(browser, stories_page + "#tab=prompts") as page:
        page.locator(f'.trace-node[data-name="{node.name}"]').click()
        settle(page)
        panel = page.locator(".trace-panel")
        text = panel.inner_text()
        assert node.name in text
        for title in ("Comes from", "Goes to", "Direct effect on the output", "Examples from the data"):
            assert title in text
        assert panel.locator(".token.active").count() > 0
        right, edge = page.evaluate(
            """[document.querySelector(".trace-node.selected").getBoundingClientRect().left,
            document.querySelector(".trace-panel").getBoundingClientRect().left]"""
        )
        assert right < edge  # the panel does not hide what was clicked
        panel.locator(".trace-list .link").first.click()
        settle(page)
        assert node.name not in panel.locator(".where").inner_text()
        page.keyboard.press("Escape")
        settle(page)
        assert not panel.is_visible()


def test_why_a_head_attends_is_told_where_norms_are_folded(
    browser: "Browser", stories_page: str, trace: Trace
) -> None:
    """The parts of an edge through attention, handed on by the chain rule, add up to it."""
    with opened(browser, stories_page + "#tab=prompts") as page:
        edges = page.evaluate(
            "interbasis.traces.shown.edges.map((e) => [e.source, e.target, e.weight, e.parts])"
        )
        parted = [edge for edge in edges if edge[3] is not None]
        assert any(
            source.startswith("attn_in.1:") and target.startswith("mlp_in.1:")
            for source, target, *_ in parted
        )
        scale = max(abs(weight) for _, _, weight, _ in parted)
        for *_, weight, parts in parted:
            assert sum(parts) == pytest.approx(weight, abs=1e-5 * scale)
        target = next(target for source, target, *_ in parted if target.startswith("mlp_in.1:"))
        page.locator(f'.trace-node[data-name="{target}"]').click()
        settle(page)
        assert "value" in page.locator(".trace-panel .paths").first.inner_text()


def test_what_was_measured_is_told_beside_what_was_predicted(
    browser: "Browser", stories_page: str, trace: Trace
) -> None:
    check = trace.checks.nodes[0]
    with opened(browser, f"{stories_page}#tab=prompts&norms=1&marks=100000&node={check.node}") as page:
        assert page.locator(".trace-node.measured").count() >= len(trace.checks.nodes)
        facts = page.locator(".trace-panel .facts").inner_text()
        assert "Set to its mean" in facts
        assert "Predicted" in facts
        raises = page.locator(f'.trace-node[data-name="{check.node}"] .mark.positive').count() == 1
        assert raises == (check.measured <= 0)
        evidence = page.locator(".trace-panel .evidence")
        assert evidence.count() == 0 or "%" in evidence.inner_text()


def test_pins_groups_and_names_come_back_from_the_address(
    browser: "Browser", stories_page: str, trace: Trace
) -> None:
    chosen = sorted(trace.nodes, key=lambda one: -one.influence)
    chosen = [one for one in chosen if one.layer in ("mlp_in.0", "mlp_in.1", "unembed")][:3]
    with opened(browser, stories_page + "#tab=prompts") as page:
        for node in chosen:
            page.locator(f'.trace-node[data-name="{node.name}"]').click()
            page.locator(".trace-panel").get_by_role("button", name="Pin", exact=True).click()
            settle(page)
        for node in chosen[:2]:
            page.locator(f'.trace-node[data-name="{node.name}"]').click()
            page.locator(".trace-panel").get_by_label("Group").fill("the name")
            page.keyboard.press("Enter")
            settle(page)
        page.get_by_label("Pinned only").check()
        settle(page)
        assert page.locator(".trace-node").count() == 3  # one node, one group, the target
        assert page.locator(".trace-node.group text").text_content() == "the name"
        assert hash_with(page, "only=1")
        address = page.url
    assert chosen[2].name in unquote(address)
    with opened(browser, address) as page:
        settle(page)
        assert page.locator(".trace-node").count() == 3
        page.get_by_role("button", name="Group pinned by module").click()
        settle(page)
        groups = page.evaluate("interbasis.traces.groups()")
        assert all(name.startswith("module ") for name, _ in groups)
        page.get_by_role("button", name="Unpin all").click()
        settle(page)
        assert page.locator(".trace-node").count() > 3


def test_it_is_exported_as_svg_png_and_attribution_graph(
    browser: "Browser", stories_page: str, trace: Trace, tmp_path: Path
) -> None:
    pinned = trace.nodes[-1].name
    with opened(browser, f"{stories_page}#tab=prompts&tpins={pinned}") as page:
        for kind in ("SVG", "PNG", "JSON"):
            with page.expect_download() as download:
                page.get_by_role("button", name=kind, exact=True).click()
            download.value.save_as(tmp_path / f"trace.{kind.lower()}")
    assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "trace.png").stat().st_size > 10_000
    assert (tmp_path / "trace.svg").read_text(encoding="utf-8").count('class="trace-node') > 10
    assert complaints(tmp_path / "trace.json") == []
    graph = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert set(graph) == {"metadata", "qParams", "nodes", "links"}
    assert graph["metadata"]["prompt_tokens"] == [token.text for token in trace.tokens]
    names = {node["node_id"] for node in graph["nodes"]}
    assert len(names) == len(graph["nodes"])
    assert all(link["source"] in names and link["target"] in names for link in graph["links"])
    kinds = {node["feature_type"] for node in graph["nodes"]}
    assert {"cross layer transcoder", "embedding", "logit"} <= kinds
    assert len(graph["qParams"]["pinnedIds"]) == 1
    groups = {name: len(members) for name, *members in graph["qParams"]["supernodes"]}
    assert groups == {group.name: len(group.nodes) for group in trace.groups}
    weights = sorted(link["weight"] for link in graph["links"] if not link["source"].startswith("E"))
    assert weights == pytest.approx(sorted(edge.weight for edge in trace.edges), rel=1e-6)


def test_a_prompt_by_keyboard_only(browser: "Browser", stories_page: str) -> None:
    with opened(browser, stories_page + "#tab=prompts") as page:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.classList.contains('trace-node')"):
                break
        here = "document.activeElement.dataset.name"
        assert page.evaluate(here) == "target"
        page.keyboard.press("ArrowDown")
        first = page.evaluate(here)
        assert first.startswith("unembed:")
        page.keyboard.press("Enter")
        settle(page)
        assert first in page.locator(".trace-panel .where").inner_text()
        page.keyboard.press("p")
        settle(page)
        assert page.locator(".trace-node.pinned").count() == 1
        page.keyboard.press("Escape")
        settle(page)
        assert not page.locator(".trace-panel").is_visible()


def test_a_long_prompt_is_painted(browser: "Browser", tmp_path: Path) -> None:
    with opened(browser, long_page(tmp_path)) as page:
        assert page.locator(".trace-token").count() == 200
        assert page.evaluate("interbasis.traces.paintedAt") > 0


@pytest.mark.slow  # a clock says little while other tests run beside it
def test_a_long_prompt_is_painted_within_a_second(browser: "Browser", tmp_path: Path) -> None:
    """200 tokens, from navigation to the first paint that holds the nodes, by the browser's own clock."""
    with opened(browser, long_page(tmp_path)) as page:
        assert 0 < page.evaluate("interbasis.traces.paintedAt") < 1000


def long_page(folder: Path) -> str:
    return write_page([runs.long_trace(folder)], folder / "long.html").as_uri() + "#tab=prompts"


def test_a_run_without_prompts_says_how_to_trace_one(browser: "Browser", server: ViewerServer) -> None:
    with opened(browser, server.url + "#tab=prompts") as page:
        words = page.locator(".prompts").inner_text()
        assert "interbasis trace RUN --sample 3" in words
        assert "--prompt" not in words  # modular addition takes none


def test_a_damaged_trace_costs_its_own_part_only(browser: "Browser", stories: Path, tmp_path: Path) -> None:
    run = shutil.copytree(stories, tmp_path / "run")
    (file,) = (run / "traces").glob("*.json")
    file.write_text("{}")
    with opened(browser, write_page([run], tmp_path / "page.html").as_uri()) as page:
        assert "could not be read" in page.locator(".status").inner_text()
        assert page.locator(".node").count() > 10


def test_a_second_prompt_can_be_chosen(browser: "Browser", stories: Path, tmp_path: Path) -> None:
    run = shutil.copytree(stories, tmp_path / "run")
    open_run(run).trace(prompt="Once there was a boy named Tom . He", checks=0)
    with opened(browser, write_page([run], tmp_path / "page.html").as_uri() + "#tab=prompts") as page:
        page.locator(".trace-choice button", has_text="Tom").click()
        settle(page)
        assert page.locator(".trace-token").count() == 10


@pytest.fixture(scope="module")
def picture_page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Any]:
    """A convolutional network with a traced picture."""
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(1, 3, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(4)
    module = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(12, 3)).double()
    images = torch.rand(12, 1, 8, 8, dtype=torch.float64)
    run = interbasis.build(interbasis.from_torch(module, example=images[:2]), images)
    trace = run.trace(sample=2, checks=4).trace
    return trace, run.to_html(tmp_path_factory.mktemp("picture") / "page.html").as_uri() + "#tab=prompts"


@pytest.mark.parametrize("width", [390, 1440])
def test_a_traced_picture_stands_beside_its_nodes(
    browser: "Browser", picture_page: tuple[Trace, Any], width: int
) -> None:
    trace, address = picture_page
    with opened(browser, f"{address}&marks=100000") as page:
        page.set_viewport_size({"width": width, "height": 900})
        settle(page)
        assert page.locator("img.trace-input").get_attribute("src") == trace.picture
        names = page.locator(".trace-node").evaluate_all("all => all.map((node) => node.dataset.name)")
        assert set(names) >= {node.name for node in trace.nodes}
        framed = page.locator(".trace-node:has(.field)").evaluate_all(
            "all => all.map((node) => node.dataset.name)"
        )
        assert set(framed) == {node.name for node in trace.nodes if node.field}
        node = next(node for node in trace.nodes if node.field)
        page.evaluate(f"interbasis.traces.select('{node.name}')")
        settle(page)
        style = page.locator(".field-picture i").get_attribute("style")
        assert f"left: {100 * node.field[0]:g}%" in style
        row, column = divmod(node.position, 8)
        assert f"“{row}, {column}”" in page.locator(".trace-panel .where").inner_text()
