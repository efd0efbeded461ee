"""The page reads all that the schema has and nothing else: every access is watched in a real Chromium."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import interbasis
import small_runs
from cases import normal
from interbasis.show.viewer.notes import save_notes
from interbasis.show.viewer.page import STATIC, write_page
from interbasis.show.viewer.payload import run_payload
from interbasis.show.viewer.schema import SCHEMA, PageData

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DESCRIPTION = PageData.model_json_schema(mode="serialization")
WATCH = """(schema) => {
  window.read = new Set();
  window.unknown = new Set();
  const parse = JSON.parse;
  const resolved = (s) => (s.$ref ? schema.$defs[s.$ref.split("/").pop()] : s);
  const isObject = (value) => value !== null && typeof value === "object";
  const keys = (value) => Object.keys(value).sort().join();
  // The one of several types that a value has.
  const typeOf = (s, value) => {
    const choices = (s.anyOf ?? [s]).map(resolved);
    if (Array.isArray(value)) return choices.find(({ type }) => type === "array");
    return choices.find(({ type, properties, additionalProperties }) =>
      type === "object" && (properties ? keys(properties) === keys(value) : additionalProperties));
  };
  const watched = (value, s) => {
    if (!isObject(value)) return value;
    const type = typeOf(resolved(s), value);
    if (!type) throw new Error(`a value that is not in the schema: ${keys(value)}`);
    if (Array.isArray(value)) {
      return value.map((item, k) => watched(item, type.prefixItems?.[k] ?? type.items));
    }
    if (!type.properties) return value; // by names that are data
    return new Proxy(value, {
      get(target, name, receiver) {
        if (typeof name === "symbol") return Reflect.get(target, name, receiver);
        if (!Object.hasOwn(type.properties, name)) {
          if (!(name in Object.prototype)) window.unknown.add(`${type.title}.${name}`);
          return undefined;
        }
        window.read.add(`${type.title}.${name}`);
        const key = "watched " + name;
        target.cache ??= {};
        return (target.cache[key] ??= watched(target[name], type.properties[name]));
      },
      ownKeys(target) {
        window.unknown.add(`${type.title} copied as a whole`);
        return Reflect.ownKeys(target);
      },
    });
  };
  JSON.parse = (text) => {
    const value = parse(text);
    return value?.format === "interbasis-page" ? watched(value, schema) : value;
  };
}"""
VIEWS = (
    "#output=show&constant=1&colour=module&sort=strength&scale=log",
    "#by=needed&loss=100&sort=module&output=merge",
    "#by=share&share=1&colour=group&q=zzz",
    "#tab=curves",
    "#tab=about",
    "#tab=prompts",
)
FEW_VIEWS = (VIEWS[0], "#tab=curves", "#tab=about", "#tab=differences")
"""Of pages that add something in these alone."""

EVERY_NODE = """() => {
  for (const { name } of interbasis.traces.shown.nodes.slice(0, 12)) interbasis.traces.select(name);
}"""
"""Opens the panel of the nodes of a traced prompt, one after the other."""


def fields(description: dict[str, Any] = DESCRIPTION) -> set[str]:
    """Every field of every record, as Record.field."""
    records = [description, *description["$defs"].values()]
    return {f"{record['title']}.{name}" for record in records for name in record.get("properties", ())}


@pytest.fixture(scope="module")
def page_files(
    lib_with_notes: Path, built: Path, stories: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[Any]:
    """Pages of real runs that hold, together, everything that a page can be told."""
    folder = tmp_path_factory.mktemp("schema")
    runs = [lib_with_notes, stories]
    for name in ("rows", "images"):
        run = small_runs.classifier(folder / name, images=name == "images")
        run.ablate(sections="linear.1", robust=True)
        run.curves()
        run.features(top=4)
        runs.append(run.folder)
    network, last = run.network, run.network.sections[-1]
    moved = replace(network, sections=(*network.sections[:-1], replace(last, skip=1.1 * last.skip)))
    interbasis.diff(
        network, moved, normal(20, 12), run=run, folder=run.folder / "diffs/moved", progress=False
    )
    pages = [write_page([run], folder / f"{run.name}.html") for run in runs]
    return [*pages, write_page([built / "lib", built / "pca"], folder / "two.html")]


@pytest.fixture(scope="module")
def lib_with_notes(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = shutil.copytree(built / "lib", tmp_path_factory.mktemp("notes") / "lib")
    place = {"layer": "mlp_in.0", "index": 3}
    groups = [{"name": "carry", "members": [place]}]
    save_notes(run, {"pinned": [place], "names": [place | {"name": "mine"}], "groups": groups})
    return run


def watched_reads(
    browser: "Browser",
    file: Path,
    views: tuple[str, ...] = VIEWS,
) -> tuple[set[str], set[str]]:
    """What a page reads of its data in some views, and what it reads that is not in the schema."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, accept_downloads=True)
    context.add_init_script(f"({WATCH})({json.dumps(DESCRIPTION)})")
    read, unknown, failures = set(), set(), []
    try:
        page = context.new_page()
        page.on("pageerror", lambda error: failures.append(str(error)))
        for view in views:
            page.goto("about:blank")
            page.goto(file.as_uri() + view)
            page.wait_for_selector("main")
            for _ in range(200):  # what is watched takes its time
                if page.evaluate("Boolean(window.interbasis)"):
                    break
                page.wait_for_timeout(50)
            page.evaluate(
                """() => interbasis.parts[0].run.layers.forEach((layer, k) =>
                [0, 1, 2].forEach((index) => interbasis.select({ place: 0, layer: k, index })))"""
            )
            page.wait_for_timeout(100)
            if view.endswith("prompts") and page.locator(".trace-node").count():
                page.evaluate(EVERY_NODE)
                with page.expect_download():
                    page.get_by_role("button", name="JSON", exact=True).click()
            read |= set(page.evaluate("[...window.read]"))
            unknown |= set(page.evaluate("[...window.unknown]"))
    finally:
        context.close()
    assert failures == []
    return read, unknown


def test_javascript_reads_every_field_and_nothing_else(browser: "Browser", page_files: list[Any]) -> None:
    everything: set[str] = set()
    for k, file in enumerate(page_files):
        read, unknown = watched_reads(browser, file, VIEWS if k < 2 else FEW_VIEWS)
        assert unknown == set()
        everything |= read
    assert fields() - everything == set(), "the page is told what it never shows"


def test_a_field_that_is_renamed_on_one_side_is_noticed(
    browser: "Browser", page_files: list[Any], tmp_path: Path
) -> None:
    """The check itself: a page whose data name what ranks the features differently."""
    text = page_files[0].read_text(encoding="utf-8")
    renamed = tmp_path / "renamed.html"
    renamed.write_text(text.replace('"ranked_by":', '"ranked":'), encoding="utf-8")
    changed = json.loads(json.dumps(DESCRIPTION).replace('"ranked_by"', '"ranked"'))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "DESCRIPTION", changed)
        read, unknown = watched_reads(browser, renamed, VIEWS[:1])
    assert unknown == {"PageLayer.ranked_by"}
    assert "PageLayer.ranked" in fields(changed) - read


def test_data_of_another_version_are_refused(
    browser: "Browser", page_files: list[Any], tmp_path: Path
) -> None:
    assert f"export const SCHEMA = {SCHEMA};" in (STATIC / "data.js").read_text(encoding="utf-8")
    text, count = re.subn(
        rf'"schema_version":{SCHEMA}\b', '"schema_version":99', page_files[0].read_text(encoding="utf-8")
    )
    assert count == 1
    other = tmp_path / "other.html"
    other.write_text(text, encoding="utf-8")
    page = browser.new_page()
    try:
        page.goto(other.as_uri())
        words = page.locator("main").inner_text()
        assert f"schema {SCHEMA}" in words
        assert "schema 99" in words
        assert page.locator(".node").count() == 0
    finally:
        page.close()


def test_the_payload_is_the_schema(built: Path) -> None:
    payload = run_payload(built / "lib")
    data = PageData(token=None, runs=(payload,))
    assert PageData.model_validate_json(data.to_json()) == data
