"""Shards merged in any order have the bits of one process, and whatever is wrong with them is named."""

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import interbasis
from cases import CASES
from command_line import Cli, Ended
from compute.in_shards import in_shards
from graphs import assert_same_graph
from interbasis import InterbasisError
from interbasis.base.version import VERSION
from interbasis.cli import app
from interbasis.compute import checkpoints, executor
from interbasis.compute.block_sums import BlockSum
from interbasis.compute.shards import RoundFinishedError, ShardJob, ShardMerge, shard_files
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.lib.rounds import rounds
from interbasis.run.request import make_request
from interbasis.run.shards import shard_jobs
from interbasis_studies.training.modadd import Recipe, initial_weights

SETTINGS: dict[str, Any] = {
    "relu": {"basis": "jib"},
    "modadd": {},
    "modadd-2-blocks": {"basis": "gib", "edge_group": 3},
    "gpt2": {"jacobian_queries": 2, "edge_group": 4},
    "llama": {},
}
SHARDS = {"relu": 7, "modadd": 3, "modadd-2-blocks": 3, "gpt2": 7, "llama": 1}

pytestmark = pytest.mark.usefixtures("one_thread", "in_blocks")


@pytest.mark.parametrize("name", SETTINGS)
def test_shards_have_the_bits_of_one_process(tmp_path: Path, name: dict[str, Any]) -> None:
    case = CASES[name]()

    def build(**options: Any) -> InteractionGraph:
        return interbasis.build(case.network, case.inputs, **SETTINGS[name], **options).graph

    alone = build()
    merged, taken = in_shards(tmp_path, SHARDS[name], build)
    assert taken == rounds(case.network, alone.config)
    assert_same_graph(alone, merged)
    assert merged.provenance.data_fingerprints == alone.provenance.data_fingerprints
    assert merged.provenance.largest_directions == alone.provenance.largest_directions


def test_shards_without_a_block_of_small_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "FINE_CHUNK_BYTES", 2**23)
    case = CASES["relu"]()
    merged, _ = in_shards(
        tmp_path, 3, lambda team: interbasis.build(case.network, case.inputs, team=team).graph
    )
    assert_same_graph(interbasis.build(case.network, case.inputs).graph, merged)


def test_statistics_of_other_data_are_of_the_same_round(tmp_path: Path) -> None:
    case = CASES["relu"]()

    def build(**options: Any) -> InteractionGraph:
        other = case.inputs[:17] * 0.5
        return interbasis.build(
            case.network, case.inputs, jacobian_data=other, edge_data=other, **options
        ).graph

    merged, taken = in_shards(tmp_path, 2, build)
    assert taken == rounds(case.network, merged.config, separate_jacobian_data=True)
    assert len(taken) == 2
    assert all(torch.equal(*pair) for pair in zip(merged.edges, build().edges, strict=True))


@pytest.mark.parametrize(("blocks", "processes"), [(1, 1), (16, 3), (16, 7), (16, 16), (21, 21), (5, 2)])
def test_every_process_sums_nodes_of_one_tree(blocks: int, processes: int) -> None:
    one = BlockSum("", blocks, lambda block: ({}, {"sum": str(block)}), lambda a, b: ({}, _joined(a, b)))
    parts: dict[Any, Any] = {}
    team = ShardJob(Path("none"), 0, processes)
    for rank in range(processes):
        nodes = one.nodes_within(*team.block_range(rank, blocks))
        assert len(nodes) <= 2 * blocks.bit_length()
        parts |= {node: one.node_sum(*node) for node in nodes}
    assert one.joined(parts) == one.node_sum(0, blocks)
    assert not parts


def _joined(
    a: tuple[dict[str, Tensor], dict[str, Any]], b: tuple[dict[str, Tensor], dict[str, Any]]
) -> dict[Any, Any]:
    return {"sum": f"({a[1]['sum']} {b[1]['sum']})"}


@pytest.fixture
def commands(tmp_path: Path, cli: Cli, small_addition: Path) -> tuple[Cli, Cli, Path]:
    """job(3, 16, …) and merge(…) of one run, as a user types them."""
    run = tmp_path / "run"

    def job(number: int, count: int, *options: Any, model: Path = small_addition) -> Ended:
        return cli(
            "build", f"modadd:{model}", "--threads", 1, "--out", run, "--shard", f"{number}/{count}", *options
        )

    def merge(*shards: Any) -> Ended:
        return cli("merge", *(shards or [run / "shards"]), "--out", run)

    return job, merge, run


def test_the_commands_build_the_run_of_one_process(
    tmp_path: Path, cli: Cli, commands: tuple[Cli, Cli, Path], small_addition: Path
) -> None:
    job, merge, run = commands
    said = []
    for _ in range(3):
        for number in (2, 1):
            assert job(number, 2).code == 0
        said.append(" ".join(merge().out.split()))
    assert said[0].startswith("round 1 of 3 is merged")
    assert said[0].endswith("run the same 2 jobs again for round 2 (Jacobian at attn_in.0)")
    assert said[1].endswith("run the same 2 jobs again for round 3 (edges)")
    assert "saved in" in said[2]
    others = sorted(file.name for file in run.iterdir() if file.suffix != ".safetensors")
    assert others == ["config.json", "signature.json"]
    assert cli("build", f"modadd:{small_addition}", "--threads", 1, "--out", tmp_path / "alone").code == 0
    assert_same_graph(run, tmp_path / "alone")
    assert "holds a finished run" in job(1, 2).err


def test_shards_that_do_not_belong_together_are_named(
    tmp_path: Path, commands: tuple[Cli, Cli, Path], small_addition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, merge, run = commands
    folder, aside = run / "shards", tmp_path / "aside"
    aside.mkdir()

    def refusal(*shards: Any) -> str:
        ended = merge(*shards)
        assert ended.code == 2
        return " ".join(ended.err.split())

    def made(name: str, number: int, count: int = 3, *options: Any, **model: Any) -> Path:
        """A shard that is computed, and put aside."""
        assert job(number, count, *options, **model).code == 0
        return Path(shutil.move(folder / f"round-1.shard-{number}-of-{count}.safetensors", aside / name))

    assert "run/shards, but there is no" in refusal(folder)
    assert "there are none; run" in refusal(aside)
    one, two, three = (made(f"shard{number}", number) for number in (1, 2, 3))
    assert "round 1 lacks the shard 2/3;" in refusal(three, one)
    copy = shutil.copy(two, aside / "copy")
    assert "shard 2 of 3 is given twice" in refusal(three, copy, one, two)
    cut = aside / "cut"
    cut.write_bytes(two.read_bytes()[:-8])
    assert f"{cut} is truncated, or not" in refusal(one, cut, three)
    assert f"expected a shard at {aside / 'no'}" in refusal(one, aside / "no")
    assert "one of 3 shards and" in refusal(one, two, three, made("half", 2, 2))
    other = made("settings", 2, 3, "--basis", "random")
    assert "with basis = lib and" in refusal(one, other, three)
    weights = tmp_path / "other.safetensors"

    save_file(initial_weights(Recipe(seed=4, p=11, width=16, heads=2, hidden=24)), weights)
    assert f"{made('model', 2, model=weights)} with model" in refusal(one, aside / "model", three)
    assert "with data " in refusal(one, made("data", 2, 3, "--data", "modadd,p=11,samples=20"), three)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "VERSION", "0.0.1")
        old = made("version", 2)
    assert "and " + str(old) + " with interbasis = 0.0.1" in refusal(one, old, three)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "VERSION", "0.1.0")
        older = [made(f"older{number}", number) for number in (1, 2, 3)]
    message = refusal(*older)
    assert message.startswith(f"error: {older[0]} was computed with interbasis = 0.1.0, ")
    assert f"interbasis = {VERSION};" in message
    assert f"delete the folder {folder} " in message
    assert merge(three, one, two).code == 0
    assert "of round 1, which is merged" in refusal(three, one, two)
    assert "with basis = random" in " ".join(job(1, 3, "--basis", "random").err.split())
    assert "expected a shard as NUMBER/SHARDS" in job(4, 3).err


def test_a_job_that_was_killed_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")
    case, folder = CASES["gpt2"](), tmp_path / "shards"

    def job(rank: int, **options: Any) -> None:
        with pytest.raises(RoundFinishedError):
            interbasis.build(
                case.network, case.inputs, team=ShardJob(folder, rank, 2), resume=tmp_path, **options
            )

    def killed(phase: str, done: int, total: int) -> None:
        if phase == "statistics":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job(0, progress=killed)
    assert list((tmp_path / ".resume/build.shards-2/0").glob("statistics*"))
    job(0)
    resumed = load_file(folder / "round-1.shard-1-of-2.safetensors")
    assert not (tmp_path / ".resume").exists()
    (folder / "round-1.shard-1-of-2.safetensors").unlink()
    job(0)
    again = load_file(folder / "round-1.shard-1-of-2.safetensors")
    assert again.keys() == resumed.keys()
    assert all(torch.equal(again[name], resumed[name]) for name in again)
    job(0, progress=killed)  # it is there: nothing is computed


def test_the_job_list_is_what_to_run(tmp_path: Path, cli: Cli, small_addition: Path) -> None:
    values = {
        "model": f"modadd:{small_addition}", "basis": "gib", "isolate": False, "edge_group": 4,
        "layers": ("attn_in.0", "mlp_in.0", "unembed"), "data": "modadd,p=11,samples=40",
    }  # fmt: skip
    jobs = shard_jobs(make_request(values), tmp_path / "a run", 4)
    assert [one.passes[0] for one in jobs.rounds] == [
        "statistics of the data", "Jacobians to the end", "edges",
    ]  # fmt: skip
    words = shlex.split(jobs.rounds[0].job)
    _, bound, _ = app.parse_args(words[1:], exit_on_error=False, print_error=False)
    assert make_request(
        bound.kwargs["options"].model_dump(exclude_unset=True) | {"model": bound.args[0]}
    ) == make_request(values)
    assert bound.kwargs["output"].shard == "SHARD/4"
    options = ["--basis", "pca", "--shards", 4, "--out", tmp_path / "run"]
    listed = cli("shards", values["model"], *options)
    assert listed.out.count("--shard SHARD/4\n") == 2
    script = cli("shards", values["model"], *options, "--slurm").out
    assert script.count("--array=1-4") == 2
    assert "--shard $SLURM_ARRAY_TASK_ID/4" in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_shards_of_python_do_not_name_their_model(tmp_path: Path, cli: Cli) -> None:
    case = CASES["relu"]()
    with pytest.raises(RoundFinishedError):
        interbasis.build(case.network, case.inputs, team=ShardJob(tmp_path / "shards", 0, 1))
    assert "were computed from Python" in " ".join(
        cli("merge", tmp_path / "shards", "--out", tmp_path).err.split()
    )
    with pytest.raises(InterbasisError, match=r"with basis = lib.* basis = pca"):
        interbasis.build(
            case.network,
            case.inputs,
            basis="pca",
            team=ShardMerge(tmp_path / "shards", shard_files([tmp_path / "shards"])),
        )
