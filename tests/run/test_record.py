"""A run with everything stored beside it: joined by name, read whole or refused."""

from pathlib import Path

import pytest

import small_runs
from interbasis.analysis.run_record import read_run
from interbasis.base.errors import InterbasisError
from interbasis.run.run import Run
from interbasis.show.rows import layer_rows, section_rows


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = small_runs.classifier(tmp_path_factory.mktemp("record") / "run")
    run.ablate(sections="linear.2")
    run.ablate(sections="linear.0")
    run.features(top=2)
    return run


def test_results_stand_at_the_sections_and_layers_they_are_about(opened: Run) -> None:
    record = read_run(opened.folder)
    sections = {rows.source: rows for rows in section_rows(record, limit=None)}
    ablated = {name for name, rows in sections.items() if rows.edges_required}
    assert ablated == set(record.edge_masks) == {"linear.0", "linear.2"}
    for name in ablated:
        rows = sections[name]
        assert rows.edges_required.source == name
        assert int(rows.needed.sum()) == rows.edges_required.count
        needed = rows.values[rows.needed]
        assert needed.min().item() == rows.edges_required.epsilon
    assert sections["linear.1"].needed is None
    for rows in layer_rows(record):
        assert list(rows.features) == [1, 2]
        assert list(rows.examples) == [1, 2]
        assert rows.modules is None


def test_edges_are_the_strongest_and_what_is_left_out_is_counted(opened: Run) -> None:
    record = read_run(opened.folder)
    for whole, part in zip(section_rows(record, None), section_rows(record, 12), strict=True):
        assert part.held == 4 < whole.held == whole.nonzero == part.nonzero
        assert part.values.tolist() == whole.values.tolist()[:4]
        edges = record.graph.edges[part.index]
        assert edges[part.targets, part.sources].tolist() == part.values.tolist()
        assert part.held_share == pytest.approx(
            (part.values.square().sum() / whole.values.square().sum()).item()
        )


def test_a_result_that_cannot_be_read_is_refused_or_named(opened: Run, tmp_path: Path) -> None:
    run = small_runs.classifier(tmp_path / "run")
    run.ablate()
    (run.folder / "ablation.safetensors").write_bytes(b"other tensors")
    with pytest.raises(InterbasisError, match="interbasis ablate"):
        read_run(run.folder)
    record = read_run(run.folder, skip_unreadable=True)
    assert record.ablation is not None
    assert record.edge_masks == {}
    assert "ablation.safetensors" in record.unreadable[0]
