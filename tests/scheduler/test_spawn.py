"""One task per device on this machine, as srun would start them."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from dlbhpc.exit_status import REQUEUE
from dlbhpc.scheduler import spawn as spawning
from dlbhpc.scheduler.processes import JOB_VARIABLE, STEP_VARIABLE
from dlbhpc.scheduler.spawn import spawn, task_environment


def python(code: str) -> list[str]:
    return [sys.executable, "-c", f"import os, pathlib, sys, time\n{code}"]


def test_each_task_gets_its_rank_and_all_the_same_address(tmp_path: Path) -> None:
    code = f"""
names = ("LOCAL_RANK", "NODE_RANK", "MASTER_ADDR")
text = " ".join(os.environ[name] for name in names)
pathlib.Path({str(tmp_path)!r}, os.environ["LOCAL_RANK"]).write_text(text)
"""
    assert spawn(python(code), 3) == 0
    told = [path.read_text().split() for path in sorted(tmp_path.iterdir())]
    assert [rank for rank, *_ in told] == ["0", "1", "2"]
    assert {(node, address) for _, node, address in told} == {("0", "127.0.0.1")}


def test_what_a_surrounding_allocation_set_does_not_reach_the_tasks() -> None:
    base = {"SLURM_NTASKS": "8", "SLURM_JOB_ID": "3", "PMI_RANK": "1", "PATH": "/bin"}
    environment = task_environment({**base, JOB_VARIABLE: "77"}, rank=1)
    assert not [name for name in environment if name.startswith(("SLURM", "PMI"))]
    assert environment["PATH"] == "/bin"
    assert environment[STEP_VARIABLE] == "77"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(7)", 7),
        ("os.kill(os.getpid(), 11)", 128 + signal.SIGSEGV),
    ],
)
def test_the_exit_status_of_the_tasks(code: str, status: int) -> None:
    assert spawn(python(code), 2) == status


def test_a_task_that_fails_ends_the_others_and_its_status_is_the_one_told() -> None:
    code = "sys.exit(9) if os.environ['LOCAL_RANK'] == '1' else time.sleep(600)"
    assert spawn(python(code), 3) == 9


def test_a_task_that_cannot_be_asked_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawning, "_KILL_WAIT_SECONDS", 0.2)
    code = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.exit(9) if os.environ["LOCAL_RANK"] == "1" else time.sleep(600)
"""
    assert spawn(python(code), 2) == 9


def test_after_a_requested_stop_the_other_tasks_leave_by_themselves(tmp_path: Path) -> None:
    code = f"""
if os.environ["LOCAL_RANK"] == "1":
    time.sleep(0.5)
    pathlib.Path({str(tmp_path)!r}, "left in peace").touch()
sys.exit({REQUEUE})
"""
    assert spawn(python(code), 2) == REQUEUE
    assert (tmp_path / "left in peace").exists()
