"""Two people write notes on one run: nobody's text is lost, over HTTP and in a real browser."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from interbasis.analysis.stored_results import load_result
from interbasis.base.errors import InterbasisError
from interbasis.show.viewer import ViewerServer
from interbasis.show.viewer.notes import NO_NOTES, Notes, StaleNotesError, notes_version, save_notes
from interbasis.show.viewer.payload import run_payload
from show.viewer.conftest import serving
from show.viewer.looking import opened, settle
from show.viewer.test_server import NOTES, ask, put

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PLACE = {"layer": "mlp_in.0", "index": 5}


def named(*names: str) -> dict[str, Any]:
    return {"names": [{"layer": "mlp_in.0", "index": k + 1, "name": name} for k, name in enumerate(names)]}


def version_of(answer: tuple[int, bytes, dict[str, str]]) -> str:
    return answer[2]["ETag"].strip('"')


def test_a_stale_write_is_refused_with_the_newest_notes(server: ViewerServer, lib: Path) -> None:
    seen = run_payload(lib).notes_version
    assert seen == NO_NOTES == notes_version(lib)
    first = put(server, NOTES, If_Match=f'"{seen}"')
    assert first[0] == 200
    stale = put(server, named("late"), If_Match=f'"{seen}"')
    assert stale[0] == 409
    assert json.loads(stale[1]) == NOTES == load_result(lib, Notes).model_dump()
    assert version_of(stale) == version_of(first) == notes_version(lib) == run_payload(lib).notes_version
    assert put(server, named("late"), If_Match=stale[2]["ETag"])[0] == 200
    assert load_result(lib, Notes).names[0].name == "late"


def test_notes_on_a_graph_that_was_built_again_are_refused(server: ViewerServer, lib: Path) -> None:
    """The page still shows the old graph, whose features are others."""
    seen = run_payload(lib)
    fresh = put(server, NOTES, If_Match=f'"{seen.notes_version}"', X_Interbasis_Graph=seen.digest)
    assert fresh[0] == 200
    stale = put(server, named("old"), If_Match=fresh[2]["ETag"], X_Interbasis_Graph="0" * 64)
    assert stale[0] == 400
    assert b"was built again" in stale[1]
    assert load_result(lib, Notes).model_dump() == NOTES


def test_a_write_says_what_it_replaces(server: ViewerServer, lib: Path) -> None:
    headers = {"X_Interbasis_Token": server.token, "Content_Type": "application/json"}
    assert ask(server, "PUT", "/notes/0", json.dumps(NOTES).encode(), **headers)[0] == 428
    assert not (lib / "notes.json").exists()


def test_of_writers_at_the_same_moment_one_succeeds(lib: Path) -> None:
    """Two servers on one run, as two people start them."""
    with serving(lib) as one, serving(lib) as other:
        for turn in range(5):
            seen = notes_version(lib)
            writers = [(server, f"writer {k} in turn {turn}") for k, server in enumerate([one, other] * 4)]
            with ThreadPoolExecutor(len(writers)) as pool:
                answers = list(
                    pool.map(lambda w: put(w[0], named(w[1]), If_Match=f'"{seen}"'), writers)  # noqa: B023
                )
            won = [k for k, (status, *_) in enumerate(answers) if status == 200]
            assert sorted(status for status, *_ in answers) == [200] + [409] * 7
            assert load_result(lib, Notes).names[0].name == writers[won[0]][1]


def test_without_a_version_notes_are_replaced(lib: Path) -> None:
    _, version = save_notes(lib, NOTES)
    with pytest.raises(StaleNotesError, match="changed elsewhere") as error:
        save_notes(lib, named("x"), "another version")
    assert error.value.version == version
    assert isinstance(error.value, InterbasisError)
    notes, _ = save_notes(lib, named("x"))
    assert load_result(lib, Notes) == notes


def saved(page: "Page", how: str = "") -> None:
    """Wait until all changes are saved."""
    page.wait_for_function("(how) => interbasis.parts[0].notes.status === `Saved to the run${how}.`", arg=how)


MERGED = ", together with changes from another page"


def rename(page: "Page", label: str, text: str, how: str = "") -> None:
    page.get_by_label(label, exact=True).fill(text)
    page.keyboard.press("Enter")
    saved(page, how)


def test_two_pages_merge_what_they_write(browser: "Browser", server: ViewerServer, lib: Path) -> None:
    """Both were opened before either wrote."""
    with (
        opened(browser, server.url + "#sel=0.1.5", complaints_allowed="409") as one,
        opened(browser, server.url + "#sel=0.1.5", complaints_allowed="409") as two,
    ):
        rename(one, "Name", "from one")
        rename(one, "Group", "carry")
        one.evaluate("interbasis.parts[0].notes.pin(2, 3, true)")
        saved(one)
        rename(two, "Name", "from two", MERGED)
        assert "together with" in two.locator(".notes [role=status]").inner_text()
        assert two.get_by_label("Name", exact=True).input_value() == "from one / from two"
        assert two.get_by_label("Group", exact=True).input_value() == "carry"
        assert two.evaluate("interbasis.parts[0].notes.isPinned(2, 3)")
        # the first page is behind now; it removes its pin and adds a name elsewhere
        one.evaluate(
            "interbasis.parts[0].notes.pin(2, 3, false); interbasis.parts[0].notes.rename(0, 1, 'x')"
        )
        saved(one, MERGED)
        settle(one)
        assert one.get_by_label("Name", exact=True).input_value() == "from one / from two"
    notes = load_result(lib, Notes)
    assert {(one.layer, one.index, one.name) for one in notes.names} == {
        ("mlp_in.0", 5, "from one / from two"),
        ("attn_in.0", 1, "x"),
    }
    assert notes.model_dump()["groups"] == [{"name": "carry", "members": [PLACE]}]
    assert notes.pinned == []


def test_a_name_that_is_being_typed_survives_a_merge(
    browser: "Browser", server: ViewerServer, lib: Path
) -> None:
    with opened(browser, server.url + "#sel=0.1.5", complaints_allowed="409") as page:
        save_notes(lib, {"pinned": [PLACE]})  # by another page
        page.get_by_label("Name", exact=True).fill("half typ")
        page.evaluate("interbasis.parts[0].notes.pin(2, 3, true)")
        saved(page, MERGED)
    notes = load_result(lib, Notes)
    assert [one.name for one in notes.names] == ["half typ"]
    assert {(one.layer, one.index) for one in notes.pinned} >= {("mlp_in.0", 5)}
    assert len(notes.pinned) == 2


def test_quick_changes_on_one_page_do_not_refuse_each_other(
    browser: "Browser", server: ViewerServer, lib: Path
) -> None:
    with opened(browser, server.url + "#sel=0.1.5") as page:
        page.evaluate("for (let k = 1; k <= 20; k++) interbasis.parts[0].notes.rename(1, k, `name ${k}`)")
        saved(page)
    assert [one.name for one in load_result(lib, Notes).names] == [f"name {k}" for k in range(1, 21)]


MERGES = [
    ("a", "", "b", "b"),  # what one page removes and the other changes stays
    ("a", "b", "", "b"),
    ("a", "", "a", ""),
    ("a", "a", "", ""),
    ("", "x", "x", "x"),
    ("a", "a b", "a b c", "a b c"),
    ("a", "b", "c", "c / b"),
]
"""A name before, on this page, on the other page, and merged."""


def test_texts_are_merged_by_what_each_page_changed(browser: "Browser", server: ViewerServer) -> None:
    notes = [{"names": [PLACE | {"name": name}] if name else []} for row in MERGES for name in row[:3]]
    with opened(browser, server.url) as page:
        found = page.evaluate(
            """(notes) => {
              const book = interbasis.parts[0].notes;
              const merged = [];
              for (let k = 0; k < notes.length; k += 3) {
                book.base = book.read(notes[k]);
                book.take(notes[k + 1]);
                book.merge(notes[k + 2], "a version");
                merged.push(book.customName(1, 5));
              }
              return merged;
            }""",
            notes,
        )
    assert found == [merged for *_, merged in MERGES]
