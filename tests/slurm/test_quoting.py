"""Whatever a user names reaches a real Slurm and the job exactly or is refused; nothing runs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.command import Launch, Request, plan_launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import OutputLayout
from dlbhpc.run.record import Run
from dlbhpc.scheduler.profile import Profile, load_profile
from dlbhpc.scheduler.sbatch import render
from dlbhpc.scheduler.slurm import SlurmBatch, SlurmExecutor
from dlbhpc.scheduler.submit import submit
from slurm.devcluster.cluster import Cluster
from tests.project import eventually

pytestmark = pytest.mark.slurm

RUNNABLE = "it's $(touch canary) `touch canary` ; touch canary & | > canary # $HOME ~ * (é)"
"""Every file of this name that appears was made by something that ran it."""

# Stands in for this package in the job: tells what it was called with and what it sees.
STAND_IN = """#!/bin/bash
shift 3
printf '%s\\0' "$@" >>"$RECORD/$1"
env -0 >"$RECORD/$1.environment"
case "$1" in
    begin) mkdir -p "$RECORD/attempt"; printf '%s' "$RECORD/attempt" ;;
esac
"""


@pytest.fixture
def here(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the test and of its jobs, in which no canary may appear."""
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def finish(cluster: Cluster, launch: Launch, profile: Profile, folder: Path) -> str:
    """Run the launch's job to its end, with a stand-in for this package; returns its id."""
    python = folder / RUNNABLE.replace("/", "")
    python.write_text(STAND_IN)
    python.chmod(0o755)
    launch.output.job.mkdir(parents=True)
    script = render(launch, profile, "token", python=str(python))
    job = SlurmExecutor(launch.output.job, script).submit(SlurmBatch(launch.output)).job_id
    ended = ("COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED")
    eventually(lambda: squeue(cluster, job, "%T") in ended, "the job has ended")
    assert squeue(cluster, job, "%T") == "COMPLETED"
    return str(job)


def squeue(cluster: Cluster, job: str, field: str) -> str:
    return cluster.run(
        "squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={field}"
    ).rstrip("\n")


def recorded(folder: Path, action: str) -> list[str]:
    return (folder / action).read_text().split("\0")[:-1]


def test_what_a_user_names_reaches_slurm_and_the_job_exactly(
    cluster: Cluster, here: Path, root: Path, tmp_path: Path
) -> None:
    record = tmp_path / f"record {RUNNABLE}".replace("/", "")
    record.mkdir()
    output = root / "checkpoints" / f"run {RUNNABLE}"
    launch = plan_launch(Request(recipe="reference_mdlm", root=root, output=output))
    environment = {"NASTY": f'{RUNNABLE}\n#SBATCH --nodes=9\n\\ " %j', "RECORD": str(record)}
    profile = replace(
        load_profile("devcluster", flags={"account": RUNNABLE}),
        environment=environment,
        sbatch_lines=("--mail-type=FAIL", f"--mail-user={RUNNABLE}"),
        scratch=str(tmp_path / f"scratch {RUNNABLE}"),
    )
    job = finish(cluster, launch, profile, tmp_path)
    # Slurm writes every account in lower case.
    assert squeue(cluster, job, "%a") == RUNNABLE.lower()
    assert squeue(cluster, job, "%k") == "dlbhpc:token"
    assert squeue(cluster, job, "%j") == "dlbhpc-reference_mdlm-pydoc"
    assert squeue(cluster, job, "%D") == "1"
    shown = [line.strip() for line in cluster.run("scontrol", "show", "job", job).splitlines()]
    log = f"{output}/job/{job}_0_log.out"
    assert f"StdOut={log}" in shown
    assert f"MailUser={RUNNABLE}" in " ".join(shown)
    assert Path(log).read_text() == ""
    # What the job was called with, and what its tasks see.
    assert recorded(record, "begin") == ["begin", str(output)]
    assert recorded(record, "task") == ["task", f"{record}/attempt"]
    assert recorded(record, "end") == ["end", f"{record}/attempt", "--status", "0"]
    seen = dict(word.split("=", 1) for word in recorded(record, "task.environment") if "=" in word)
    assert {key: seen[key] for key in environment} == environment
    assert seen["DLBHPC_SCRATCH"] == f"{profile.scratch}/dlbhpc-{job}-attempt"
    assert list(tmp_path.rglob("canary")) == []


@pytest.mark.slow
@pytest.mark.parametrize("key", ["partition", "constraint"])
def test_what_slurm_does_not_have_is_refused_with_its_own_words(
    cluster: Cluster, here: Path, run: Run, key: str
) -> None:
    profile = load_profile("devcluster", flags={key: RUNNABLE})
    with pytest.raises(DlbhpcError, match=r"sbatch refused the job: .*[Ii]nvalid"):
        submit(run, profile)
    assert cluster.run("squeue", "--noheader") == ""
    assert list(here.rglob("canary")) == []


@pytest.mark.parametrize("character", ["%j", '"', "\\"])
def test_a_log_path_that_slurm_would_change_is_refused_before_anything_is_made(
    cluster: Cluster, here: Path, run: Run, character: str
) -> None:
    output = OutputLayout(run.launch.output.folder.parent / f"a{character}b")
    refused = replace(run, launch=replace(run.launch, output=output))
    with pytest.raises(DlbhpcError, match="sbatch cannot take"):
        submit(refused, load_profile("devcluster"))
    assert not output.folder.exists()
    assert cluster.run("squeue", "--noheader") == ""


def test_a_module_system_gets_names_only_and_a_job_whose_modules_do_not_load_says_so(
    cluster: Cluster, here: Path, launch: Launch, tmp_path: Path
) -> None:
    launch.output.job.mkdir(parents=True)
    profile = replace(load_profile("devcluster"), modules=("no-such/1.0",))
    script = render(launch, profile, "token")
    job = SlurmExecutor(launch.output.job, script).submit(SlurmBatch(launch.output)).job_id
    eventually(lambda: squeue(cluster, job, "%T") == "FAILED", "the job has failed")
    log = (launch.output.job / f"{job}_0_log.out").read_text()
    assert "dlbhpc: the modules of the cluster profile do not load: nothing was started" in log


def test_the_surroundings_of_another_allocation_do_not_change_the_job(
    cluster: Cluster, here: Path, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two variables that disagree end srun, and SBATCH_* would go over what the script asks."""
    surroundings = {
        "SLURM_CPUS_PER_TASK": "4",
        "SLURM_TRES_PER_TASK": "cpu:8",
        "SLURM_NTASKS": "32",
        "SBATCH_PARTITION": "high",
        "SRUN_CPUS_PER_TASK": "9",
    }
    for name, value in surroundings.items():
        monkeypatch.setenv(name, value)
    record = tmp_path / "record"
    record.mkdir()
    profile = replace(load_profile("devcluster"), environment={"RECORD": str(record)})
    job = finish(cluster, launch, profile, tmp_path)
    assert squeue(cluster, job, "%P") == "requeue"
    seen = dict(word.split("=", 1) for word in recorded(record, "task.environment") if "=" in word)
    assert (seen["SLURM_NTASKS"], seen["SLURM_CPUS_PER_TASK"]) == ("1", "1")
    assert "SLURM_TRES_PER_TASK" not in seen
