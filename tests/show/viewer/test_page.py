"""The page as a text: whole, safe, and asking nobody for anything."""

import html
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import Cli
from interbasis.analysis.stages.features import FeaturesResult
from interbasis.analysis.stored_results import load_result, save_result
from interbasis.base.errors import InterbasisError
from interbasis.run.run import open_run
from interbasis.show.viewer import page as pages
from interbasis.show.viewer.page import PageFiles, runs_html, safe_json, write_page
from interbasis.show.viewer.schema import PageTerm

EVIL = '\ud800</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> \u2028 & "'


def data_of(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="payload">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_the_page_of_modular_addition_weighs_under_5_megabytes(lib: Path) -> None:
    assert len(runs_html([lib]).encode()) < 5e6


def test_nothing_in_the_data_can_end_its_element(lib: Path) -> None:
    result = load_result(lib, FeaturesResult)
    layer = result.layers["attn_in.0"]
    features = (layer.features[0].model_copy(update={"label": EVIL}), *layer.features[1:])
    layers = result.layers | {"attn_in.0": layer.model_copy(update={"features": features})}
    save_result(lib, result.model_copy(update={"layers": layers}))
    config = json.loads((lib / "config.json").read_text())
    config["provenance"]["model"] = EVIL
    (lib / "config.json").write_text(json.dumps(config))
    page = runs_html([lib])
    assert page.count("<script") == page.count("</script>") == 2
    assert "<img" not in page
    assert "<!--" not in page
    (run,) = data_of(page)["runs"]
    printable = EVIL.replace("\ud800", "\ufffd")
    assert run["model"] == printable
    assert run["layers"][0]["features"][0]["label"] == printable


def test_json_for_script_elements_is_still_json() -> None:
    text = safe_json(PageTerm(text=EVIL, share=math.nan))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"text": EVIL, "share": None}


def test_the_policy_lets_only_the_pages_own_script_run(lib: Path) -> None:
    page = runs_html([lib])
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?:", policy)


def test_sources_name_no_other_host_and_never_make_html_from_text() -> None:
    files = PageFiles.read()
    text = files.script + files.style
    assert set(re.findall(r"https?://[^\s\"'`)]*", text)) == {"http://www.w3.org/2000/svg"}
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "@import",
    ):
        assert word not in text
    assert "</script" not in text
    assert "<!--" not in text


def test_joined_modules_define_every_name_once() -> None:
    script = PageFiles.read().script
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", script, re.MULTILINE)
    assert sorted(names) == sorted(set(names))
    assert not re.findall(r"^(?:import|export) ", script, re.MULTILINE)
    files = {path.name for path in pages.STATIC.glob("*.js")}
    assert files == set(re.findall(r"^// ([a-z-]+\.js)$", script, re.MULTILINE))
    assert {path.name for path in pages.STATIC.glob("*.css")} == set(pages.STYLES)


def test_a_page_is_one_file_and_two_runs_share_one(lib: Path, pca: Path, tmp_path: Path) -> None:
    file = write_page([lib, pca], tmp_path / "new" / "both.html")
    names = [run["basis"] for run in data_of(file.read_text(encoding="utf-8"))["runs"]]
    assert names == ["lib", "pca"]


def test_a_notebook_shows_a_graph_without_a_server(lib: Path) -> None:
    frame = open_run(lib)._repr_html_()
    inner = html.unescape(re.fullmatch(r"<iframe .*? srcdoc='([^']*)' .*></iframe>", frame, re.DOTALL)[1])
    assert 'sandbox="allow-scripts allow-downloads"' in frame
    assert PageFiles.read().script in inner
    (run,) = data_of(inner)["runs"]
    assert sum(section["held"] for section in run["sections"]) == pages.NOTEBOOK_EDGES
    assert len(frame) < 1e6


def test_export_writes_the_page_and_says_how_large_it_is(lib: Path, tmp_path: Path, cli: Cli) -> None:
    result = cli("export", lib, "--html", tmp_path / "lib.html", "--json").json
    (written,) = result["files"]
    assert written == {"file": str(tmp_path / "lib.html"), "bytes": (tmp_path / "lib.html").stat().st_size}


@pytest.mark.parametrize(("arguments", "words"), [([], "--html FILE"), (["--html", "."], "is a folder")])
def test_an_export_of_nothing_is_refused(lib: Path, arguments: list[str], words: str, cli: Cli) -> None:
    code, _, err = cli("export", lib, *arguments)
    assert code == 2
    assert words in err


def test_a_run_that_is_none_has_no_page(tmp_path: Path) -> None:
    with pytest.raises(InterbasisError, match="expected a run"):
        write_page([tmp_path], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_viewing_a_run_prints_its_address(lib: Path) -> None:
    command = [sys.executable, "-m", "interbasis", "view", str(lib), "--no-open", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert re.fullmatch(
                r"http://127\.0\.0\.1:\d+/[\w-]{43}/", json.loads(process.stdout.readline())["url"]
            )
        finally:
            process.terminate()
