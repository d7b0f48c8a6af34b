"""Who owns a run, and what a submission does to its folder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.command import Request, plan_launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import OutputLayout
from dlbhpc.run.inputs import prepare_run
from dlbhpc.run.lease import Lease, LeaseHeld, acquire
from dlbhpc.run.record import Run, write_records
from dlbhpc.scheduler import start, submission
from dlbhpc.scheduler.aside import set_aside
from dlbhpc.scheduler.processes import ProcessId
from dlbhpc.scheduler.profile import Profile
from dlbhpc.scheduler.queue import QueuedJob
from dlbhpc.scheduler.submission import Jobs
from dlbhpc.scheduler.submit import submit
from dlbhpc.steps import begin_attempt, newest_attempt

SLURM = Profile(name="site", scheduler="slurm", grace_seconds=60, save_every_minutes=5)


def own_lease() -> Lease:
    own = ProcessId.of(os.getpid())
    assert own is not None
    return Lease.new("local", "", own.pid, own.started)


def test_the_lease_of_a_living_process_is_alive() -> None:
    lease = own_lease()
    assert Jobs().is_alive(lease)
    assert not Jobs().is_alive(replace(lease, pid_started="another boot/1"))


def test_a_lease_of_another_host_counts_as_alive_and_says_how_to_free_it(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    lease = replace(own_lease(), host="a-host-that-is-gone", pid_started="x", job_id="57")
    acquire(path, lease, Jobs().is_alive)
    with pytest.raises(LeaseHeld, match=rf"nobody can see from here.*remove {path}"):
        acquire(path, own_lease(), Jobs().is_alive)


@pytest.fixture
def one_job(monkeypatch: pytest.MonkeyPatch) -> QueuedJob:
    """Slurm's queue holds one job, tagged with the token abc."""
    job = QueuedJob("41", "RUNNING", "None", "dlbhpc-duo-owt", "dlbhpc:abc")
    monkeypatch.setattr(submission, "read_queue", lambda: {"41": job})
    return job


@pytest.mark.parametrize(
    ("job_id", "token", "alive"),
    [
        ("41", "abc", True),
        ("", "abc", True),  # the submission was killed before it knew its job
        ("41", "other", False),  # the id was given out again
        ("40", "abc", True),  # gone, and 41 is the link behind it
        ("40", "other", False),
    ],
)
def test_a_job_of_slurm_is_known_by_its_tag(
    one_job: QueuedJob, job_id: str, token: str, alive: bool
) -> None:
    lease = replace(own_lease(), scheduler="slurm", job_id=job_id, token=token, pid_started="x")
    assert Jobs().is_alive(lease) is alive


@pytest.mark.parametrize(
    ("name", "comment", "alive"),
    [
        ("dlbhpc-duo-owt", "project=7", True),
        ("dlbhpc-duo-owt", "", True),
        ("dlbhpc-duo-owt", "dlbhpc:other", False),  # the id was given to another run
        ("somebodys", "project=7", False),  # ... or to another job
    ],
)
def test_a_job_whose_comment_a_site_replaces_is_known_by_its_id_and_name(
    monkeypatch: pytest.MonkeyPatch, name: str, comment: str, alive: bool
) -> None:
    job = QueuedJob("41", "RUNNING", "None", name, comment)
    monkeypatch.setattr(submission, "read_queue", lambda: {"41": job})
    lease = replace(own_lease(), scheduler="slurm", job_id="41", token="abc", pid_started="x")
    assert Jobs().is_alive(lease) is alive


def test_many_leases_cost_one_look_at_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(submission, "read_queue", lambda: calls.append(1) or {})
    jobs = Jobs()
    for number in range(200):
        lease = replace(own_lease(), scheduler="slurm", job_id=str(number))
        assert not jobs.is_alive(lease)
    assert len(calls) == 1


def test_starting_afresh_moves_saves_and_keeps_the_fence(run: Run) -> None:
    output = run.launch.output
    ghost = begin_attempt(output.steps)
    (output.steps / "step-00000003").mkdir()
    output.attempts.mkdir()
    for kept in ("checkpoints-meta/checkpoint.pth", "student_checkpoints/70000.ckpt"):
        (output.folder / kept).parent.mkdir()
        (output.folder / kept).touch()
    aside = set_aside(output)
    assert aside is not None
    assert (aside / "checkpoints-meta/checkpoint.pth").is_file()
    assert (aside / "student_checkpoints/70000.ckpt").is_file()
    assert (aside / "steps" / "step-00000003").is_dir()
    assert begin_attempt(output.steps) > ghost
    assert newest_attempt(output.steps) > ghost


def test_nothing_to_set_aside_leaves_no_folder(run: Run) -> None:
    assert set_aside(run.launch.output) is None
    assert not (run.launch.output.folder / "set_aside").exists()


def test_a_path_that_sbatch_cannot_take_is_refused_before_anything_is_written(root: Path) -> None:
    launch = plan_launch(
        Request(recipe="reference_mdlm", root=root, output=root / "checkpoints" / "a%b")
    )
    run = prepare_run(launch, "local", save_every_seconds=300, grace_seconds=30)
    with pytest.raises(DlbhpcError, match="sbatch cannot take"):
        submit(run, replace(SLURM, scheduler="local"))
    assert not (root / "checkpoints").exists()


def test_a_slurm_that_does_not_answer_is_noticed_before_anything_is_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sbatch", "squeue"):
        stub = tmp_path / "bin" / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text("#!/bin/bash\necho 'no configuration source' >&2; exit 1\n")
        stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    with pytest.raises(DlbhpcError, match=r"does not answer here .*--cluster local"):
        submit(run, SLURM)
    assert list(run.launch.output.folder.iterdir()) == []


def test_a_run_is_given_back_last(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or what the next submission writes there would be taken away."""
    output, lease, left = run.launch.output, own_lease(), []
    acquire(output.lease, lease, Jobs().is_alive)
    write_records(run)
    monkeypatch.setattr(start, "release", lambda *_: left.append(output.run.exists()))
    start.give_back(output, lease)
    assert left == [False]


def test_a_job_that_sbatch_refuses_leaves_the_folder_free(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, script in (
        ("sbatch", "echo 'Invalid account' >&2; exit 1"),
        ("squeue", "true"),
        ("srun", "true"),
    ):
        stub = tmp_path / "bin" / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(f"#!/bin/bash\n{script}\n")
        stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(start, "LOOKUP_SECONDS", 0.0)
    with pytest.raises(DlbhpcError, match="Invalid account"):
        submit(run, SLURM)
    output: OutputLayout = run.launch.output
    assert not output.lease.exists()
    assert not output.run.exists()
