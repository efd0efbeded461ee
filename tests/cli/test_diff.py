"""`interbasis diff` on the command line: two checkpoints, a run, a series, and refusals."""

import pytest
from safetensors.torch import load_file, save_file

from cases import normal
from interbasis_studies.training.modadd import Recipe, initial_weights


@pytest.fixture(scope="module")
def checkpoints(small_addition, tmp_path_factory):
    """Three checkpoints: the small model of all tests, and two with changes of one MLP."""
    folder, weights = tmp_path_factory.mktemp("checkpoints"), load_file(small_addition)
    paths = [small_addition]
    for step in (1, 2):
        name = "blocks.0.mlp.W_in"
        weights[name] = weights[name] * (1 + 0.1 * normal(*weights[name].shape, seed=step).float())
        paths.append(folder / f"step-{step}.safetensors")
        save_file(weights, paths[-1])
    return [f"modadd:{path}" for path in paths]


def test_two_checkpoints(cli, checkpoints, tmp_path):
    shown = cli("diff", *checkpoints[:2], "--out", tmp_path / "diff").out
    assert "Most of the difference arises in" in shown
    assert "2 sections do not differ" in shown
    assert "inverse covariance" in shown
    record = cli("diff", *checkpoints[:2], "--json").json
    changed = [name for name, section in record["sections"].items() if section["changed"]]
    assert len(changed) == 1
    assert record["sections"][changed[0]]["jacobian"]["value"] > 0
    assert (tmp_path / "diff" / "diff.json").is_file()
    assert not (tmp_path / "diff" / ".resume").exists()


def test_a_run_of_the_first_model_gives_the_metric(cli, checkpoints, tmp_path):
    cli("build", checkpoints[0], "--out", tmp_path / "run", "-q")
    record = cli("diff", tmp_path / "run", checkpoints[1], "--json").json
    assert record["metric"] == "lib"
    directions = next(s for s in record["sections"].values() if s["changed"])["output_directions"]
    assert directions[0]["features"]


def test_a_series_is_a_heat_map(cli, checkpoints, tmp_path):
    shown = cli("diff", *checkpoints, "--out", tmp_path / "series").out
    assert "Series" in shown
    assert (tmp_path / "series" / "series.svg").read_text().startswith("<?xml")
    assert sorted(path.name for path in (tmp_path / "series").glob("0*")) == ["01", "02"]
    last = cli("diff", *checkpoints, "--against", "last", "--json").json
    assert {part["first"]["name"] for part in last["differences"]} == {checkpoints[2]}


def test_refusals(cli, checkpoints, tmp_path):
    assert cli("diff", checkpoints[0]).code == 2
    assert "at least two models" in cli("diff", checkpoints[0]).err
    wider = tmp_path / "wider.safetensors"
    save_file(initial_weights(Recipe(seed=3, p=11, width=20, heads=2, hidden=24)), wider)
    ended = cli("diff", checkpoints[0], f"modadd:{wider}")
    assert ended.code == 2
    assert "of one width" in ended.err
