"""Fewer tokens than coordinates: said at the build, in the summary, in the report and on the page."""

import logging
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

import interbasis
from interbasis.cli import main
from interbasis.show.report.claims import claims
from interbasis.show.report.record import read_runs
from interbasis.show.result_tables import summary_tables
from interbasis.show.viewer.payload import workspace_payload


def build(samples: int, tmp_path: Path) -> interbasis.Run:
    torch.manual_seed(0)
    network = interbasis.from_torch(nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 3)))
    run = interbasis.build(network, torch.randn(samples, 20), progress=False)
    return interbasis.open_run(run.save(tmp_path / str(samples)))


def refused(run: interbasis.Run) -> str:
    return " ".join(claim.because for claim in claims(*read_runs(run)) if not claim.allowed)


@pytest.mark.parametrize("samples", [1, 3])
def test_too_few_data_are_said_everywhere(
    samples: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("interbasis"), "propagate", True)
    with caplog.at_level(logging.WARNING, "interbasis"):
        run = build(samples, tmp_path)
    tokens = "1 token" if samples == 1 else "3 tokens"
    sentence = f"linear.0 has {tokens} for 20 coordinates, linear.1 has {tokens} for 8 coordinates"
    assert sentence in caplog.text
    assert sentence in workspace_payload(run).too_few_data
    assert any(sentence in part for part in summary_tables(run.summary()) if isinstance(part, str))
    assert f"linear.0 {tokens} for 20 coordinates" in refused(run)


def test_the_command_says_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["build", "modadd", "--data", "modadd,samples=60", "--edge-method", "none"]
    with suppress(SystemExit):
        main([*arguments, "--out", str(tmp_path / "run")])
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("too few data") == 1
    assert "Too few data" not in printed.out
    with suppress(SystemExit):
        main(["show", str(tmp_path / "run")])
    assert "Too few data: mlp_in.0 has 60 " in capsys.readouterr().out


def test_few_data_are_said_in_the_report_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("interbasis"), "propagate", True)
    with caplog.at_level(logging.WARNING, "interbasis"):
        run = build(100, tmp_path)
    assert "too few" not in caplog.text
    assert workspace_payload(run).too_few_data == ""
    assert "linear.0 100 tokens for 20 coordinates." in refused(run)


def test_enough_data_are_not_mentioned(tmp_path: Path) -> None:
    assert "coordinates" not in refused(build(300, tmp_path))
