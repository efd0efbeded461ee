"""What the page does with texts, addresses and results that nobody expected."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.torch import load_file

import small_runs
from interbasis.analysis.features.records import ClassStatistics
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.features import ExamplesResult, FeaturesResult
from interbasis.analysis.stored_results import load_result, save_result
from interbasis.show.viewer import write_page
from interbasis.show.viewer.notes import save_notes
from show.viewer.looking import EVIL, ink, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def with_evil_texts(lib: Path) -> None:
    """The real results, with HTML for the names of a layer, a model, labels, classes, outputs and tokens."""
    config = json.loads((lib / "config.json").read_text())
    name = config["layers"][1]["name"]
    config["provenance"]["model"] = config["layers"][1]["name"] = EVIL
    features, examples = load_result(lib, FeaturesResult), load_result(lib, ExamplesResult)
    (lib / "config.json").write_text(json.dumps(config))
    layer, (first, *_) = features.layers[name], examples.layers[name]
    feature = layer.features[0]
    push = feature.effects.up[0].model_copy(update={"name": EVIL})
    term = feature.fourier.terms[0].model_copy(update={"text": EVIL})
    feature = feature.model_copy(
        update={
            "label": EVIL,
            "classes": ClassStatistics(names=(EVIL,), means=(1.0,), auroc=(0.9,), explained=0.5),
            "fourier": feature.fourier.model_copy(update={"terms": (term,)}),
            "effects": feature.effects.model_copy(update={"up": (push,)}),
        }
    )
    layer = layer.model_copy(update={"name": EVIL, "features": (feature,)})
    save_result(lib, features.model_copy(update={"layers": {EVIL: layer}}))
    (band, *_) = first.bands
    example = band.examples[0].model_copy(update={"tokens": (EVIL,), "activations": (1.0,), "active": 0})
    band = band.model_copy(update={"name": EVIL, "examples": (example,)})
    first = first.model_copy(update={"bands": (band,)})
    save_result(lib, examples.model_copy(update={"layers": {EVIL: (first,)}}))
    for file in ("ablation.json", "curves.json", "modules.json"):
        text = (lib / file).read_text()
        (lib / file).write_text(text.replace(json.dumps(name), json.dumps(EVIL)))
    masks = load_file(lib / "ablation.safetensors")
    masks = {key.replace(f".{name}", f".{EVIL}"): mask for key, mask in masks.items()}
    save_result(lib, load_result(lib, AblationResult), masks)


def test_text_from_outside_is_shown_as_text(browser: "Browser", lib: Path, tmp_path: Path) -> None:
    """HTML in labels, tokens, class names, layer names and the model's name."""
    with_evil_texts(lib)
    file = write_page([lib], tmp_path / "evil.html")
    for tab in ("graph", "curves", "about"):
        with opened(browser, f"{file.as_uri()}#sel=0.1.1&tab={tab}") as page:
            assert page.evaluate("window.hacked") is None
            assert page.locator("img, b").count() == 0
            assert page.locator(".panel h2").text_content() == EVIL
            if tab == "graph":
                assert page.locator(".column-title bdi").nth(1).text_content() == EVIL
                assert page.locator(".token").text_content() == EVIL
            else:
                assert EVIL in page.locator(f".{tab}").text_content()


def test_a_picture_that_is_none_is_not_opened(browser: "Browser", tmp_path: Path) -> None:
    run = small_runs.classifier(tmp_path / "images", images=True)
    run.features(top=2)
    examples = run.stored(ExamplesResult)
    name, (first, *_) = next(iter(examples.layers.items()))
    (band, *_) = first.bands
    evil = {"image": "javascript:window.hacked=3", "label": EVIL}
    shown = (band.examples[0].model_copy(update=evil), *band.examples[1:])
    first = first.model_copy(update={"bands": (band.model_copy(update={"examples": shown}),)})
    save_result(run.folder, examples.model_copy(update={"layers": {name: (first,)}}))
    file = write_page([run.folder], tmp_path / "evil.html")
    with opened(browser, f"{file.as_uri()}#sel=0.0.{first.index}") as page:
        assert page.evaluate("window.hacked") is None
        assert page.locator(".no-picture").count() == 1
        assert page.locator(".pictures img").count() == len(shown) - 1
        assert page.locator(".pictures figcaption bdi").first.text_content() == EVIL


def test_a_run_without_results_says_what_makes_them(browser: "Browser", pca: Path, tmp_path: Path) -> None:
    file = write_page([pca], tmp_path / "pca.html")
    with opened(browser, f"{file.as_uri()}#sel=0.1.1") as page:
        assert "interbasis ablate RUN" in page.locator(".controls").inner_text()
        assert "interbasis features RUN" in page.locator(".panel:not(.trace-panel)").inner_text()
        page.get_by_role("button", name="Curves").click()
        assert "interbasis curves RUN" in page.locator(".curves").inner_text()
        page.get_by_role("button", name="About").click()
        assert "not yet" in page.locator(".about").inner_text()


@pytest.mark.parametrize(
    "view",
    [
        "nodes=-5&count=0.5&share=7&from=2.5&to=-1&loss=3&module=99",
        "nodes=1e9&by=nonsense&scale=<b>&tab=x&theme=y&sel=9.9.9&q=%00",
        "sel=0.1.999&from=abc&to=1e99&colour=group&sort=module&%ff=%fe&__proto__=1",
    ],
)
def test_any_address_can_be_shown(browser: "Browser", built: Path, tmp_path: Path, view: str) -> None:
    file = write_page([built / "lib"], tmp_path / "page.html")
    with opened(browser, f"{file.as_uri()}#{view}") as page:
        assert page.locator(".node").count() > 0
        assert "edges drawn" in page.locator(".status").inner_text()


@pytest.mark.parametrize("name", ["ablation", "curves", "modules", "features", "examples", "notes"])
@pytest.mark.parametrize("change", [{"schema_version": 99}, {"result": {"layers": 5}}])
def test_a_result_in_another_form_costs_its_own_part_only(
    browser: "Browser", lib: Path, tmp_path: Path, name: str, change: dict[str, Any]
) -> None:
    """What a later version writes, or a person breaks, must not take the graph away."""
    save_notes(lib, {"pinned": [{"layer": "mlp_in.0", "index": 5}]})
    file = lib / f"{name}.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    page_file = write_page([lib], tmp_path / "page.html")
    with opened(browser, f"{page_file.as_uri()}#sel=0.1.2") as page:
        assert ink(page, ".edges:not(.over)") > 500
        assert page.locator(".panel:not(.trace-panel)").get_by_text("Comes from").count() == 1
        assert "1 result could not be read" in page.locator(".status").inner_text()
        for tab in ("Curves", "About", "Graph"):
            page.get_by_role("button", name=tab, exact=True).click()
        assert file.name in page.locator(".unreadable").text_content()
