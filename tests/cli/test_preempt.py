"""Asking a job of Slurm's to save and run again, with stand-ins for Slurm's commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlbhpc.cli.main import main
from dlbhpc.run.lease import Lease, acquire
from dlbhpc.run.record import Run, write_records
from dlbhpc.scheduler.control import was_cancelled


@pytest.fixture
def job(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the run's job 41; its state and what scancel answers lie in files."""
    write_records(run)
    output = run.launch.output
    output.job.mkdir()
    lease = Lease.new("slurm", "41", 0, "")
    acquire(output.lease, lease, lambda _: True)
    scripts = {
        "squeue": f'echo "41|$(cat {tmp_path}/state)|None|dlbhpc-job|dlbhpc:{lease.token}"',
        "scancel": f"echo called >>{tmp_path}/scancel; exit $(cat {tmp_path}/status)",
    }
    for name, script in scripts.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    (tmp_path / "state").write_text("RUNNING")
    (tmp_path / "status").write_text("0")
    return output.job


def ask(run: Run, command: str = "preempt") -> int:
    output = run.launch.output
    return main([command, str(output.folder), "--root", str(run.launch.layout.root)])


def test_a_running_job_is_asked_and_the_wish_is_noted(run: Run, job: Path) -> None:
    assert ask(run) == 0
    assert (job / "41.preempted").exists()


@pytest.mark.parametrize("state", ["PENDING", "COMPLETING", "SUSPENDED"])
def test_a_job_that_does_not_run_cannot_be_preempted(
    run: Run, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    """scancel would wait a minute in vain, and a note left behind would later turn an end that
    somebody wished for into a preemption, which runs again."""
    (tmp_path / "state").write_text(state)
    assert ask(run) == 2
    assert f"job 41 is {state.lower()}" in capsys.readouterr().err
    assert not (tmp_path / "scancel").exists()
    assert not (job / "41.preempted").exists()


def test_a_job_that_could_not_be_asked_leaves_no_note(run: Run, job: Path, tmp_path: Path) -> None:
    (tmp_path / "status").write_text("1")
    assert ask(run) == 2
    assert not (job / "41.preempted").exists()
    assert ask(run, "cancel") == 2
    assert not was_cancelled(job, "41")
