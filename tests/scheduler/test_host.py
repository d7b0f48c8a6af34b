"""Probes of this machine: what they find, and that they leave nothing behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dlbhpc.scheduler import host
from dlbhpc.scheduler.host import ask, file_system, shared_trial, trial_write
from dlbhpc.scheduler.profile import Profile

PROFILE = Profile(
    name="site", scheduler="slurm", grace_seconds=60, save_every_minutes=5, partition="a b"
)


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a stand-in of srun on PATH."""

    def make(script: str) -> None:
        path = tmp_path / "bin" / "srun"
        path.parent.mkdir()
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")

    return make


def test_a_command_that_is_not_there_is_an_answer() -> None:
    answer = ask("a-command-that-is-not-there")
    assert (answer.status, answer.ok) == (None, False)
    assert "not installed" in answer.words


def test_a_command_that_fails_answers_with_its_error() -> None:
    answer = ask("bash", "-c", "echo out; echo why >&2; exit 3")
    assert (answer.status, answer.words) == (3, "why")


def test_a_command_that_hangs_is_given_up() -> None:
    assert ask("sleep", "60", seconds=0.05).status is None


def test_the_type_of_a_file_system() -> None:
    assert file_system(Path("/proc/self")) == "proc"
    assert file_system(Path("/proc/no/such/folder")) == "proc"


def test_a_trial_write_leaves_nothing(tmp_path: Path) -> None:
    found = trial_write(tmp_path, 3_000_000)
    assert (found.bytes, found.error) == (3_000_000, "")
    assert found.free_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_a_quota_shows_when_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(host.os, "fsync", full)
    assert trial_write(tmp_path, 10).error == "Disk quota exceeded"
    assert list(tmp_path.iterdir()) == []


TASKS = 'shift $(($# - 5)); for r in 0 1; do SLURM_PROCID=$r "$@"; done'


def test_nodes_that_see_the_folder_read_and_write_it(srun, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    srun(f'printf "%s\\n" "$@" >{tmp_path}/argv; {TASKS}')
    found = shared_trial(folder, PROFILE, 2)
    assert (found.read, found.written, found.error) == (2, 2, "")
    assert list(folder.iterdir()) == []
    argv = (tmp_path / "argv").read_text().splitlines()
    assert {"--nodes=2", "--ntasks-per-node=1", "--partition=a b"} <= set(argv)


def test_a_node_that_does_not_see_it_is_counted(srun, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    srun(f'{TASKS.replace("0 1", "0")}; SLURM_PROCID=1 "$1" "$2" "$3" "$4" /nowhere/nonce')
    found = shared_trial(folder, PROFILE, 2)
    assert (found.read, found.written) == (1, 1)


def test_a_job_that_does_not_start_is_a_reason(srun, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    srun("echo 'Unable to allocate resources' >&2; exit 1")
    found = shared_trial(folder, PROFILE, 2)
    assert found.error == "Unable to allocate resources"
    assert list(folder.iterdir()) == []
