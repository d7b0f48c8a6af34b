"""What the batch script's last command does about the job, with stand-ins of Slurm's commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dlbhpc.cli.main import main
from dlbhpc.exit_status import REQUEUE, REQUEUE_WANTED
from dlbhpc.files import file_digest, write_json
from dlbhpc.run.attempt import Job
from dlbhpc.run.completion import Final, publish
from dlbhpc.run.history import Attempt, read_attempts
from dlbhpc.run.lease import Lease, acquire, read_lease
from dlbhpc.run.record import Run, write_records
from dlbhpc.scheduler.control import mark_preempted, take_preempted
from dlbhpc.scheduler.ledger import ledger_path
from dlbhpc.scheduler.processes import TOKEN_VARIABLE
from dlbhpc.steps import begin_attempt

RUNNING = "JobId=41 JobState=RUNNING Reason=None Restarts=0 PreemptTime=2026-11-30T20:15:11"
End = Callable[..., int]


@pytest.fixture
def attempt(run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An attempt of Slurm's job 41 that has begun; the job holds its run's lease."""
    write_records(run)
    output = run.launch.output
    output.job.mkdir()
    output.batch_script.write_text("#!/bin/bash\n")
    lease = Lease.new("slurm", "41", 0, "")
    acquire(output.lease, lease, lambda _: True)
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    monkeypatch.setenv(TOKEN_VARIABLE, lease.token)
    folder = output.attempt(begin_attempt(output.steps))
    folder.mkdir(parents=True)
    job = Job("41", 0, "slurm", submission=lease.token)
    record = {"attempt": 1, "output": str(output.folder), "resumed_from": None, **job.record()}
    write_json(folder / "attempt.json", record)
    return folder


@pytest.fixture
def end(attempt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> End:
    """Ends the attempt where Slurm's commands are these scripts; each call is written down."""

    def run(*, status: int = REQUEUE, show: str = f"echo '{RUNNING}'", **scripts: str) -> int:
        scontrol = f'if [ "$1" = --oneliner ]; then {show}; else {scripts.pop("requeue")}; fi'
        for name, script in {"scontrol": scontrol, **scripts}.items():
            path = tmp_path / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f'#!/bin/bash\necho {name} "$@" >>{tmp_path}/calls\n{script}\n')
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        return main(["attempt", "end", str(attempt), "--status", str(status)])

    return run


@pytest.fixture
def calls(tmp_path: Path) -> Callable[[], list[str]]:
    """What was asked of Slurm, but for the look at the job."""

    def read() -> list[str]:
        lines = (tmp_path / "calls").read_text().splitlines()
        return [line for line in lines if "--oneliner" not in line]

    return read


def ended(attempt: Path, run: Run) -> Attempt:
    return read_attempts(run.launch.output)[-1]


def test_a_preempted_attempt_requeues_its_job_once(
    run: Run, attempt: Path, end: End, calls: Callable[[], list[str]]
) -> None:
    assert end(requeue="true") == REQUEUE
    assert calls() == ["scontrol requeue 41"]
    assert ended(attempt, run).reason == "preempted"
    assert read_lease(run.launch.output.lease) is not None


def test_a_job_that_slurm_requeued_faster_is_requeued_all_the_same(
    run: Run, attempt: Path, end: End
) -> None:
    assert end(requeue="echo 'Job is pending execution' >&2; exit 1") == REQUEUE
    assert not ended(attempt, run).requeue_wanted


def test_a_job_that_slurm_took_back_is_not_requeued_a_second_time(
    run: Run, attempt: Path, end: End, calls: Callable[[], list[str]]
) -> None:
    show = "echo 'JobState=COMPLETING Restarts=1'"
    end(requeue="true", show=show, sinfo="echo idle")
    assert not any("requeue" in call for call in calls())
    assert read_lease(run.launch.output.lease) is not None


def test_where_requeue_is_refused_the_script_is_submitted_once_more(
    run: Run, attempt: Path, end: End, calls: Callable[[], list[str]]
) -> None:
    refusal = "echo 'Requested operation is presently disabled' >&2; exit 1"
    assert end(requeue=refusal, sbatch="echo 42") == REQUEUE
    script = run.launch.output.batch_script
    assert calls() == [
        "scontrol requeue 41",
        f"sbatch --parsable --dependency=afterany:41 {script}",
    ]
    assert not ended(attempt, run).requeue_wanted
    # The new job finds its lease.
    assert read_lease(run.launch.output.lease) is not None


@pytest.mark.parametrize(
    ("scontrol", "words"),
    [
        ("echo 'scontrol: not found' >&2; exit 127", "exit status 127"),
        ("echo 'no such job' >&2; exit 1", "no such job"),
        ("echo 'Access/permission denied' >&2; exit 1", "sbatch failed"),
    ],
)
def test_a_job_that_nobody_can_requeue_leaves_a_mark_and_a_status_of_its_own(
    run: Run,
    attempt: Path,
    end: End,
    capsys: pytest.CaptureFixture[str],
    scontrol: str,
    words: str,
) -> None:
    assert end(requeue=scontrol, sbatch="exit 1") == REQUEUE_WANTED
    assert ended(attempt, run).requeue_wanted
    assert words in capsys.readouterr().err


def test_a_host_without_scontrol_leaves_a_mark_too(
    run: Run, attempt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["attempt", "end", str(attempt), "--status", "75"]) == REQUEUE_WANTED
    assert "not installed" in json.loads((attempt / "end.json").read_text())["advice"]
    assert ended(attempt, run).reason == "unknown"


def test_an_element_of_an_array_requeues_itself_and_no_other(
    attempt: Path, end: End, calls: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "700")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    assert end(requeue="true") == REQUEUE
    assert calls() == ["scontrol requeue 700_3"]


def test_a_damaged_ledger_keeps_no_job_from_running_again(
    run: Run, attempt: Path, end: End, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger_path(run.launch.output).write_text("{")
    refusal = "echo 'Access/permission denied' >&2; exit 1"
    assert end(requeue=refusal, sbatch="echo 42", squeue="true") == REQUEUE
    assert "submitted again as 42" in capsys.readouterr().err


def test_a_request_to_the_execution_before_is_forgotten(run: Run, attempt: Path) -> None:
    """Else the next end, somebody's scancel, would count as a preemption and run again."""
    mark_preempted(run.launch.output.job, "41")
    main(["attempt", "begin", str(run.launch.output.folder)])
    assert not take_preempted(run.launch.output.job, "41")


def test_a_failed_attempt_gives_its_run_back(run: Run, attempt: Path, end: End) -> None:
    assert end(status=3, requeue="exit 1", show="echo 'JobState=RUNNING Restarts=0'") == 3
    assert read_lease(run.launch.output.lease) is None


def test_where_the_controller_is_away_a_failed_attempt_keeps_its_run(
    run: Run, attempt: Path, end: End
) -> None:
    """Its job may be back in the queue already, and would find its lease gone."""
    assert end(status=3, requeue="exit 1", show="exit 1") == 3
    assert read_lease(run.launch.output.lease) is not None


def test_a_requeued_job_of_a_complete_run_has_nothing_to_do(
    run: Run,
    attempt: Path,
    write_checkpoint: Callable[..., bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = run.launch.output
    state = output.folder / "state"
    write_checkpoint(state, {"global_step": run.total_steps})
    output.composed_config.write_text("mode: train\n")
    publish(run, Final(state, run.total_steps, None), "id", file_digest(output.composed_config))
    output.lease.unlink()
    before = sorted(output.folder.rglob("*"))
    assert main(["attempt", "begin", str(output.folder)]) == 0
    assert sorted(output.folder.rglob("*")) == before
    assert capsys.readouterr().out == ""
