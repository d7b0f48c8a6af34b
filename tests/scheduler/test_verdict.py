"""Why a job of Slurm's ends, told from Slurm's own facts."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from dlbhpc.files import write_json
from dlbhpc.layout import OutputLayout
from dlbhpc.run.attempt import Job
from dlbhpc.run.history import read_attempts
from dlbhpc.run.reasons import Cause, Reason
from dlbhpc.run.record import Run, write_records
from dlbhpc.scheduler.control import mark_cancelled, mark_preempted
from dlbhpc.scheduler.verdict import (
    JobNow,
    cause_of,
    look_at,
    memory_exceeded,
    own_cause,
    parse_job,
    silent_reasons,
    told_in_log,
)

GRACE = 120
NOW = datetime.fromisoformat("2026-11-30T20:15:12").timestamp()


def stub(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Puts stand-ins of Slurm's commands on PATH, for states that are hard to reach."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, script in scripts.items():
        path = folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")


def shown(**fields: str) -> str:
    """What `scontrol --oneliner show job` prints of a job five minutes into its day."""
    usual = {
        "JobId": "41",
        "JobName": "a=b c",
        "JobState": "RUNNING",
        "Reason": "None",
        "Restarts": "0",
        "StartTime": "2026-11-30T20:10:11",
        "EndTime": "2026-12-01T20:10:11",
        "PreemptTime": "None",
    }
    return " ".join(f"{key}={value}" for key, value in (usual | fields).items()) + "\n"


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({}, Cause.NOTHING),
        ({"EndTime": "Unknown"}, Cause.NOTHING),
        ({"PreemptTime": "2026-11-30T20:15:11"}, Cause.PREEMPTION),
        # The limit is near as well, but Slurm says what it is.
        (
            {"PreemptTime": "2026-11-30T20:15:11", "EndTime": "2026-11-30T20:15:21"},
            Cause.PREEMPTION,
        ),
        ({"EndTime": "2026-11-30T20:17:12"}, Cause.TIME_LIMIT),
        ({"EndTime": "2026-11-30T20:18:12"}, Cause.TIME_LIMIT),  # a signal that came early
        ({"EndTime": "2026-11-30T20:18:13"}, Cause.NOTHING),
        ({"EndTime": "2026-11-30T20:15:00"}, Cause.TIME_LIMIT),  # over already
        (
            {
                "JobState": "COMPLETING",
                "Reason": "TimeLimit",
                "EndTime": "2026-11-30T20:15:12",
            },
            Cause.TIME_LIMIT,
        ),
        ({"JobState": "COMPLETING", "EndTime": "2026-11-30T20:15:12"}, Cause.CANCEL),
        ({"JobState": "CANCELLED", "EndTime": "2026-11-30T20:15:12"}, Cause.CANCEL),
        # The end of the grace time, and a scancel within it.
        (
            {
                "JobState": "COMPLETING",
                "PreemptTime": "2026-11-30T20:15:12",
                "EndTime": "2026-11-30T20:15:12",
            },
            Cause.PREEMPTION,
        ),
        (
            {
                "JobState": "COMPLETING",
                "PreemptTime": "2026-11-30T20:15:11",
                "EndTime": "2026-11-30T20:15:12",
            },
            Cause.CANCEL,
        ),
        ({"JobState": "PENDING", "Reason": "BeginTime", "Restarts": "1"}, Cause.TAKEN_BACK),
        ({"JobState": "COMPLETING", "Restarts": "1"}, Cause.TAKEN_BACK),
    ],
)
def test_what_slurm_says_of_a_job(fields: dict[str, str], cause: Cause) -> None:
    assert cause_of(parse_job(shown(**fields)), 0, GRACE, NOW) is cause


def test_five_preemptions_early_in_a_day_are_no_time_limit() -> None:
    for count in range(5):
        job = parse_job(shown(PreemptTime="2026-11-30T20:15:11", Restarts=str(count)))
        assert cause_of(job, count, GRACE, NOW) is Cause.PREEMPTION


def test_a_controller_that_is_away_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(tmp_path, monkeypatch, scontrol="exit 1")
    assert look_at("41") == JobNow("UNKNOWN")
    assert cause_of(look_at("41"), 0, GRACE, NOW) is Cause.UNKNOWN


@pytest.fixture
def output(run: Run) -> OutputLayout:
    write_records(replace(run, grace_seconds=GRACE))
    run.launch.output.job.mkdir()
    return run.launch.output


def test_what_we_asked_for_ourselves_need_not_be_asked_of_slurm(
    output: OutputLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(tmp_path, monkeypatch, scontrol="exit 1")
    job = Job("41", 0, "slurm")
    assert own_cause(output, job, 1) is Cause.UNKNOWN
    mark_preempted(output.job, "41")
    assert own_cause(output, job, 1) is Cause.PREEMPTION
    # The note is for one stop, not for the next one of the same job.
    assert own_cause(output, job, 1) is Cause.UNKNOWN
    mark_cancelled(output.job, "41")
    assert own_cause(output, job, 1) is Cause.CANCEL


@pytest.mark.parametrize(
    ("states", "cause"),
    [
        ("echo idle; echo 'down*'", Cause.NODE_FAILURE),
        ("echo idle", Cause.TAKEN_BACK),
        ("exit 1", Cause.TAKEN_BACK),
    ],
)
def test_a_job_that_is_requeued_with_a_node_down_has_lost_it(
    output: OutputLayout,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    states: str,
    cause: Cause,
) -> None:
    scontrol = f"echo '{shown(JobState='COMPLETING', Restarts='1').strip()}'"
    sinfo = f'[[ "$*" == *"--nodes=n[1-2]"* ]] && {{ {states}; }}'
    stub(tmp_path, monkeypatch, scontrol=scontrol, sinfo=sinfo)
    assert own_cause(output, Job("41", 0, "slurm", node_list="n[1-2]"), 1) is cause


@pytest.mark.parametrize(
    ("sacct", "sinfo", "cancelled", "reason"),
    [
        ("echo '41|TIMEOUT|9'; echo '41|NODE_FAIL|9'", "echo idle", False, Reason.NODE_FAILURE),
        ("echo '41|TIMEOUT|9'; echo '41|PREEMPTED|9'", "echo 'down*'", False, Reason.PREEMPTED),
        ("exit 1", "echo 'down*'", False, Reason.NODE_FAILURE),
        ("exit 1", "echo idle", False, Reason.INTERRUPTED),
        ("exit 1", "exit 1", False, Reason.INTERRUPTED),
        ("echo '41|TIMEOUT|9'", "echo idle", False, Reason.INTERRUPTED),  # its record lags behind
        ("exit 1", "echo 'down*'", True, Reason.CANCELLED),
    ],
)
def test_why_an_attempt_ended_that_could_not_say_so(
    output: OutputLayout,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sacct: str,
    sinfo: str,
    cancelled: bool,
    reason: Reason,
) -> None:
    stub(tmp_path, monkeypatch, sacct=sacct, sinfo=sinfo)
    folder = output.attempt(1)
    folder.mkdir(parents=True)
    record = Job("41", 1, "slurm", node_list="n1").record()
    write_json(folder / "attempt.json", {"attempt": 1, **record})
    if cancelled:
        mark_cancelled(output.job, "41")
    (attempt,) = read_attempts(output)
    assert silent_reasons(output)(attempt) is reason


def write_log(output: OutputLayout, number: int, earlier: str, words: str) -> None:
    """A job's log in which this attempt's part begins behind what an earlier one wrote."""
    log = output.folder / "log"
    log.write_text(earlier + words)
    output.attempt(number).mkdir(parents=True, exist_ok=True)
    record = {"attempt": number, **Job("41", 0, "slurm", node_list="n1").record()}
    record["log"] = {"path": str(log), "offset": len(earlier)}
    write_json(output.attempt(number) / "attempt.json", record)


DUE_TO = "slurmstepd-n1: error: *** STEP 41.0 ON n1 CANCELLED AT 2026-11-30T20:15:25 DUE TO {}\n"


@pytest.mark.parametrize(
    ("words", "reason", "cause"),
    [
        (DUE_TO.format("PREEMPTION ***"), Reason.PREEMPTED, Cause.PREEMPTED_BACK),
        (
            DUE_TO.format("NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"),
            Reason.NODE_FAILURE,
            Cause.NODE_FAILURE,
        ),
        (DUE_TO.format("TIME LIMIT ***"), Reason.TIME_LIMIT, Cause.TAKEN_BACK),
        (DUE_TO.format("JOB REQUEUE ***"), None, Cause.TAKEN_BACK),
        ("the loss was high, DUE TO PREEMPTION\n", None, Cause.TAKEN_BACK),
    ],
)
def test_why_slurm_took_a_job_back_stands_in_this_attempts_part_of_its_log(
    output: OutputLayout,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    reason: Reason | None,
    cause: Cause,
) -> None:
    scontrol = f"echo '{shown(JobState='COMPLETING', Restarts='1').strip()}'"
    stub(tmp_path, monkeypatch, scontrol=scontrol, sinfo="echo idle", sacct="exit 1")
    write_log(output, 2, DUE_TO.format("PREEMPTION ***"), words)
    assert told_in_log(output, 2) is reason
    assert own_cause(output, Job("41", 0, "slurm", node_list="n1"), 2) is cause
    (attempt,) = read_attempts(output)
    assert silent_reasons(output)(attempt) is (reason or Reason.INTERRUPTED)


EARLIER = "slurmstepd: error: Detected 1 oom-kill event(s)\n"


@pytest.mark.parametrize(
    ("words", "exceeded"),
    [
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0.", True),
        ("slurmstepd-n2: error: Exceeded job memory limit", True),
        ("slurmstepd: error: Exceeded step memory limit at some point.", True),
        ("a word\nslurmstepd-n2: error: StepId=7.0 exceeded memory limit (4 > 2)", True),
        ("srun: error: n2: task 0: Out Of Memory", True),
        ("torch.OutOfMemoryError: CUDA out of memory.", False),
        ("srun: error: n2: task 0: Killed", False),
        ("", False),
    ],
)
def test_too_much_memory_is_told_by_slurm_in_this_attempts_part_of_the_log(
    tmp_path: Path, words: str, exceeded: bool
) -> None:
    output = OutputLayout(tmp_path)
    assert not memory_exceeded(output, 2)
    write_log(output, 2, EARLIER, words)
    assert memory_exceeded(output, 2) is exceeded
