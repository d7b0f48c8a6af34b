"""``dlbhpc submit`` where it makes several jobs, and ``plan --when``; nothing is submitted here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dlbhpc.cli.main import main

Stub = Callable[[str, str], None]


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Puts a stand-in for one of Slurm's commands on PATH."""

    def make(name: str, script: str) -> None:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")

    return make


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--chain", "-1"], "--chain is -1"),
        (["--array-parallelism", "2"], "goes with --seeds"),
        (["--seeds", "1-3", "--array-parallelism", "0"], "at least one"),
        (["--seeds", "1-3", "--seed", "0"], "--seed is for one"),
        (["--seeds", "1-3", "--chain", "1"], "--chain is for one"),
        (["--seeds", "1-3", "--follow"], "--follow is for one"),
        (["--seeds", "1-3", "--with-teacher"], "--with-teacher is for one"),
        (["--seeds", "1-3", "--soonest"], "--soonest is for one"),
        (["--seeds", "3-1"], "must go upwards"),
        (["--with-teacher"], "reference_mdlm has no teacher"),
        (["--with-teacher", "--teacher", "x"], "leave one of them out"),
        (["--soonest"], "where a job starts at once"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    root: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    command = ["submit", "--recipe", "reference_mdlm", "--cluster", "local", "--root", str(root)]
    assert main([*command, *flags, "--dry-run"]) == 2
    assert message in capsys.readouterr().err
    assert not (root / "checkpoints").exists()


@pytest.mark.parametrize("flags", [["--chain", "1"], ["--seeds", "1-2"]])
def test_what_needs_a_queue_is_refused_on_this_machine(
    root: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    command = ["submit", "--recipe", "reference_mdlm", "--cluster", "local", "--root", str(root)]
    assert main([*command, *flags]) == 2
    assert "one run after the other with --follow" in capsys.readouterr().err
    assert not (root / "checkpoints").exists()


def test_seeds_are_runs_of_their_own_in_one_folder(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["submit", "--recipe", "duo", "--cluster", "slurm", "--root", str(root)]
    assert main([*command, "--seeds", "7,1-2", "--dry-run", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    folder = root / "checkpoints" / "self_trained" / "lm1b" / "duo-seeds"
    assert [run["output"] for run in shown] == [str(folder / f"seed-{s}") for s in (7, 1, 2)]
    assert ["seed=7" in run["command"] for run in shown] == [True, False, False]
    assert len({run["sbatch"] for run in shown}) == 1
    assert "#SBATCH --array=1-3\n" in shown[0]["sbatch"]


def test_a_trial_of_several_seeds_lies_with_the_trials(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["submit", "--recipe", "reference_mdlm", "--cluster", "slurm", "--root", str(root)]
    assert main([*command, "--trial", "--seeds", "1", "--dry-run", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    folder = root / "checkpoints" / "trials" / "pydoc" / "reference_mdlm-seeds"
    assert run["output"] == str(folder / "seed-1")


def test_the_teacher_is_the_base_recipe_as_it_is_locked(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["submit", "--recipe", "mdlm_di4c", "--dataset", "owt", "--with-teacher"]
    assert main([*command, "--cluster", "slurm", "--root", str(root), "--dry-run"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    folder = root / "checkpoints" / "self_trained" / "owt" / "mdlm"
    assert first == f"first, unless it is complete: mdlm in {folder}"


def test_a_teacher_that_does_not_fit_the_cluster_is_to_be_submitted_by_itself(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["submit", "--recipe", "mdlm_di4c", "--with-teacher", "--cluster", "devcluster"]
    assert main([*command, "--root", str(root), "--dry-run"]) == 2
    assert "submit mdlm first by itself" in capsys.readouterr().err


TEST_ONLY = """
nodes=$(sed -n 's/^#SBATCH --nodes=//p' /dev/stdin)
[ "$nodes" -gt 4 ] && { echo 'allocation failure: not available' >&2; exit 1; }
echo "sbatch: Job 27 to start at 2026-11-30T2$((4 - nodes)):01:02 using 4 processors on nodes n" >&2
"""


def test_plan_asks_the_cluster_when_it_would_start_each_shape(
    root: Path, capsys: pytest.CaptureFixture[str], stub: Stub
) -> None:
    stub("sbatch", TEST_ONLY)
    command = ["plan", "--recipe", "duo", "--cluster", "slurm", "--root", str(root), "--when"]
    assert main([*command, "--gpus-per-node", "8", "--json"]) == 0
    shown = {item["nodes"]: item for item in json.loads(capsys.readouterr().out)["expected"]}
    assert sorted(shown) == [1, 2, 4, 8]
    assert shown[1]["start"] == "2026-11-30T23:01:02"
    assert shown[4]["start"] == "2026-11-30T20:01:02"
    assert (shown[8]["start"], shown[8]["refusal"]) == (None, "allocation failure: not available")
    assert all(item["finish"] is None for item in shown.values())
    assert main([*command, "--gpus-per-node", "8"]) == 0
    assert "1 x 8 GPUs, 64 per device: start 2026-11-30 23:01, finish -" in capsys.readouterr().out


def test_the_geometry_that_starts_soonest_is_taken(
    root: Path, capsys: pytest.CaptureFixture[str], stub: Stub
) -> None:
    stub("sbatch", TEST_ONLY)
    command = ["submit", "--recipe", "duo", "--cluster", "slurm", "--root", str(root)]
    command += ["--soonest", "--dry-run", "--json"]
    assert main([*command, "--gpus-per-node", "2"]) == 0
    shown = capsys.readouterr()
    assert "soonest: 4 x 2 GPUs" in shown.err
    sbatch = json.loads(shown.out)["sbatch"]
    assert "#SBATCH --nodes=4\n" in sbatch
    assert "#SBATCH --gpus-per-node=2\n" in sbatch
    assert main([*command, "--nodes", "2"]) == 0
    assert "soonest: 2 x 8 GPUs" in capsys.readouterr().err
