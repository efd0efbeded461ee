"""Plans of builds, from a short trial."""

import json
from typing import Any

import pytest

from command_line import Cli
from interbasis.lib.plan import ERRORS
from widths import check_command


@pytest.fixture(scope="module")
def planned(cli: Cli) -> dict[str, Any]:
    return cli("plan", "modadd", "--json").json


def test_a_plan_has_time_memory_disk_and_errors_for_every_target(planned: dict[str, Any]) -> None:
    assert [float(error) for error in planned["targets"]] == list(ERRORS)
    for error, choice in planned["targets"].items():
        assert choice["edge_error"] <= 1.01 * float(error)
        assert choice["jacobian_error"] <= 1.01 * float(error)
        assert 0 < choice["seconds"]["processor"] <= 1.001 * planned["exact"]["seconds"]["processor"]
    assert planned["exact"]["edge_error"] == planned["exact"]["jacobian_error"] == 0
    assert planned["memory"] > 1e8
    assert planned["disk"] > 1e5
    assert planned["samples"] * planned["positions"] == 3830 * 3


def test_more_tokens_and_machines_are_extrapolated(cli: Cli) -> None:
    """A hundred times the data: sums take a hundred times as long, samples that are drawn do not."""
    more = cli("plan", "modadd", "--tokens", 3 * 383_000, "--gpus", 2, "--nodes", 5, "--json").json
    assert (more["samples"], more["processes"]) == (383_000, 10)
    pilot = more["pilot"]
    sums = more["exact"]["seconds"]["processor"] - pilot["fixed"]["processor"]
    per_sample = [pilot["statistics"]["seconds"]["processor"]]
    per_sample += [pilot[name][0]["seconds"]["processor"] for name in ("jacobians", "edges")]
    assert sums == pytest.approx(383_000 * sum(per_sample))
    assert max(more["targets"]["0.05"]["settings"]["edge_samples"]) < 38_300


def test_a_plan_is_printed(cli: Cli) -> None:
    printed = " ".join(cli("plan", "modadd", "--nodes", 2).out.split())
    assert "on 2 devices like this one" in printed
    assert "exact" in printed
    assert json.loads(cli("plan", "modadd", "--edge-method", "none", "--json").out)["pilot"]["edges"] == []


def test_plans_fit_in_the_width_of_a_terminal() -> None:
    check_command("plan", "modadd")
