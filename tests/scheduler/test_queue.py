"""What Slurm's commands answer, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlbhpc.scheduler import queue
from dlbhpc.scheduler.queue import (
    QueuedJob,
    SlurmError,
    own_job_id,
    parse_queue,
    read_queue,
    requeue,
    slurm_command,
)


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a stand-in of one of Slurm's commands on PATH, for states that are hard to reach."""

    def make(name: str, script: str) -> Path:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
        return path

    return make


def test_lines_that_are_no_jobs_are_passed_over() -> None:
    lines = [
        "slurm_load_jobs: warning: something",
        "41|RUNNING|None|dlbhpc-duo-owt|dlbhpc:abc",
        "42_3|PENDING|Resources|job|somebody's|own | comment",
        "",
    ]
    assert parse_queue(lines) == [
        QueuedJob("41", "RUNNING", "None", "dlbhpc-duo-owt", "dlbhpc:abc"),
        QueuedJob("42_3", "PENDING", "Resources", "job", "somebody's|own | comment"),
    ]


@pytest.mark.parametrize(
    ("comment", "token"),
    [
        ("dlbhpc:abc", "abc"),
        ("project=7 dlbhpc:abc; checked", "abc"),
        ("abc", None),
        ("notdlbhpc:abc", None),
        ("", None),
    ],
)
def test_the_tag_of_a_job(comment: str, token: str | None) -> None:
    assert QueuedJob("1", "RUNNING", "None", "any", comment).token == token


def test_the_users_own_settings_do_not_change_what_is_asked(
    stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SQUEUE_STATES", "SQUEUE_FORMAT", "SLURM_JOB_ID", "SBATCH_QOS"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    stub("squeue", 'env | grep -cE "^(SQUEUE|SLURM_JOB|SBATCH)"; env | grep SLURM_CONF')
    with pytest.raises(SlurmError):
        slurm_command("squeue-that-is-not-there")
    assert slurm_command("squeue").split() == ["0", "SLURM_CONF=/etc/slurm.conf"]


def test_a_command_that_fails_is_an_error_with_its_words(stub) -> None:
    stub("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(SlurmError, match="Unable to contact"):
        read_queue()


def test_a_job_that_slurm_requeued_already_is_no_failure(stub) -> None:
    stub("scontrol", "echo 'Job is pending execution for job 41' >&2; exit 1")
    assert requeue("41") == "Slurm has requeued job 41 already"


@pytest.mark.parametrize(
    "words",
    [
        "Unable to contact slurm controller (connect failure)",
        "slurm_requeue error: Socket timed out on send/recv operation",
        "Zero Bytes were transmitted or received",
        "Transport endpoint is not connected",
    ],
)
def test_a_busy_controller_is_asked_again(
    stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setattr(queue, "_RETRY_SECONDS", 0.0)
    stub("scontrol", f"mkdir {tmp_path}/asked 2>/dev/null || exit 0; echo '{words}' >&2; exit 1")
    assert requeue("41") == "job 41 is requeued"


def test_a_requeue_that_fails_is_an_error(stub) -> None:
    stub("scontrol", "echo 'Access/permission denied' >&2; exit 1")
    with pytest.raises(SlurmError, match="permission denied"):
        requeue("41")


def test_a_host_without_scontrol_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SlurmError, match="scontrol is not installed"):
        requeue("41")


def test_a_job_id_that_is_none_is_refused_before_any_call(stub, tmp_path: Path) -> None:
    stub("scontrol", f"touch {tmp_path}/called")
    with pytest.raises(SlurmError, match="no Slurm job id"):
        requeue("12; rm -rf x")
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7"}, "7"),
        (
            {"SLURM_JOB_ID": "703", "SLURM_ARRAY_JOB_ID": "700", "SLURM_ARRAY_TASK_ID": "3"},
            "700_3",
        ),
    ],
)
def test_an_element_of_an_array_is_named_by_both_numbers(
    environment: dict[str, str], expected: str | None
) -> None:
    assert own_job_id(environment) == expected
