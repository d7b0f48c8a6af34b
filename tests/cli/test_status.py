"""The table over all runs, with stand-ins for Slurm's commands that count their calls."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.cli.main import main
from dlbhpc.layout import Layout, OutputLayout
from dlbhpc.run.record import Run, write_records


class Slurm:
    """Stand-ins for squeue and sacct on PATH: what they answer, and how often they were called."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self.answer("squeue", "")
        self.answer("sacct", "")

    def answer(self, name: str, text: str, status: int = 0) -> None:
        (self._folder / f"{name}.txt").write_text(text)
        script = f'echo "$@" >>{self._folder}/{name}.calls\ncat {self._folder}/{name}.txt\n'
        (self._folder / name).write_text(f"#!/bin/bash\n{script}exit {status}\n")
        (self._folder / name).chmod(0o755)

    def calls(self, name: str) -> list[str]:
        path = self._folder / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return Slurm(tmp_path / "bin")


MakeRun = Callable[..., OutputLayout]


@pytest.fixture
def make_run(run: Run) -> MakeRun:
    """Makes runs under the root as submissions to Slurm leave them."""
    layout: Layout = run.launch.layout
    write_records(run)
    pattern = layout.root / "pattern"
    shutil.move(run.launch.output.folder, pattern)

    def make(name: str, job_id: str = "", *, log: bool = True, **attempt: Any) -> OutputLayout:
        output = OutputLayout(layout.checkpoints / name)
        shutil.copytree(pattern, output.folder)
        output.job.mkdir()
        if job_id:
            lease = {"token": f"t{job_id}", "scheduler": "slurm", "host": "h", "job_id": job_id}
            output.lease.write_text(
                json.dumps({**lease, "pid": 0, "pid_started": "x", "time": 0.0})
            )
        if job_id and log:
            (output.job / f"{job_id}_0_log.out").touch()
        if attempt:
            folder = output.attempt(1)
            folder.mkdir(parents=True)
            begun = {"attempt": 1, "job_id": job_id, "resumed_from": None}
            (folder / "attempt.json").write_text(json.dumps(begun))
            (folder / "events.jsonl").write_text('{"event": "start", "time": 100.0}\n')
            progress = {"step": attempt.get("step", 1), "time": 110.0}
            (folder / "progress.json").write_text(json.dumps(progress))
            if "reason" in attempt:
                (folder / "end.json").write_text(json.dumps({"reason": attempt["reason"]}))
        return output

    return make


Rows = Callable[[], dict[str, dict[str, Any]]]


@pytest.fixture
def rows(run: Run, capsys: pytest.CaptureFixture[str]) -> Rows:
    def read() -> dict[str, dict[str, Any]]:
        assert main(["status", "--json", "--root", str(run.launch.layout.root)]) == 0
        found = json.loads(capsys.readouterr().out)
        return {row["run"].removeprefix("checkpoints/"): row for row in found}

    return read


def test_200_runs_cost_one_squeue_and_one_sacct(
    slurm: Slurm, make_run: MakeRun, rows: Rows
) -> None:
    for number in range(200):
        make_run(f"run-{number}", str(number), step=2)
    queue = [f"{number}|RUNNING|None|dlbhpc-job|dlbhpc:t{number}\n" for number in range(100)]
    slurm.answer("squeue", "".join(queue))
    slurm.answer("sacct", "".join(f"{number}|TIMEOUT|60\n" for number in range(100, 200)))
    shown = rows()
    assert len(shown) == 200
    assert {shown[f"run-{number}"]["state"] for number in range(100)} == {"running"}
    assert {shown[f"run-{number}"]["last_end"] for number in range(100, 200)} == {"time limit"}
    assert len(slurm.calls("squeue")) == 1
    (call,) = slurm.calls("sacct")
    assert "100,101," in call
    assert "99," not in call.partition("--jobs=")[2].partition("100,")[0]


def test_runs_that_said_why_they_ended_need_no_accounting(
    slurm: Slurm, make_run: MakeRun, rows: Rows
) -> None:
    make_run("failed", "7", reason="upstream failed")
    make_run("new")
    assert {name: row["state"] for name, row in rows().items()} == {
        "failed": "upstream failed",
        "new": "not begun",
    }
    assert slurm.calls("sacct") == []


def test_what_waits_behind_a_job_is_told(slurm: Slurm, make_run: MakeRun, rows: Rows) -> None:
    make_run("chain", "41", step=2)
    make_run("alone", "50", step=2)
    queue = "43|PENDING|Dependency|dlbhpc-job|dlbhpc:t41\n41|RUNNING|None|dlbhpc-job|dlbhpc:t41\n"
    queue += "42|PENDING|Dependency|dlbhpc-job|dlbhpc:t41\n"
    queue += "50|PENDING|Resources|dlbhpc-job|dlbhpc:t50\n"
    slurm.answer("squeue", queue)
    chain, alone = rows()["chain"], rows()["alone"]
    assert (chain["state"], chain["job"], chain["links"]) == ("running", "41", ["42", "43"])
    assert chain["note"] == "behind it: 42, 43"
    assert (alone["links"], alone["note"]) == ([], "waits: Resources")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("RUNNING", "running"),
        ("COMPLETING", "completing"),
        ("REQUEUED", "requeued"),
        ("REQUEUE_HOLD", "held"),
        ("RESV_DEL_HOLD", "held"),
        ("SPECIAL_EXIT", "held"),
        ("SIGNALING", "running"),
        ("PREEMPTED", "needs resubmit"),
        ("REVOKED", "unknown"),
        ("UNKNOWN_NEW", "unknown"),
    ],
)
def test_states_of_the_queue(
    slurm: Slurm, make_run: MakeRun, rows: Rows, state: str, expected: str
) -> None:
    make_run("a", "7", step=1)
    slurm.answer("squeue", f"7|{state}|None|dlbhpc-job|dlbhpc:t7\n")
    assert rows()["a"]["state"] == expected


def test_a_held_job_says_why_and_what_to_do(
    slurm: Slurm, make_run: MakeRun, rows: Rows, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run("a", "7", step=1)
    slurm.answer("squeue", "7|PENDING|launch failed requeued held|dlbhpc-job|dlbhpc:t7\n")
    assert main(["status", "--root", str(run.launch.layout.root)]) == 0
    text = capsys.readouterr().out
    assert "a: held (launch failed requeued held): scontrol release 7" in text
    row = rows()["a"]
    assert (row["state"], row["slurm_reason"]) == ("held", "launch failed requeued held")
    assert row["eta_seconds"] is None


@pytest.mark.parametrize(("text", "status"), [("", 1), ("", 0), ("slurmdbd is down\n", 0)])
def test_accounting_that_does_not_know_is_no_failure_of_the_run(
    slurm: Slurm, make_run: MakeRun, rows: Rows, text: str, status: int
) -> None:
    make_run("a", "7", step=1)
    slurm.answer("sacct", text, status)
    row = rows()["a"]
    assert (row["state"], row["last_end"]) == ("interrupted", "interrupted")


def test_a_controller_that_is_away_makes_nothing_but_completion_known(
    slurm: Slurm, make_run: MakeRun, rows: Rows
) -> None:
    make_run("a", "7", step=1)
    slurm.answer("squeue", "", status=1)
    assert rows()["a"]["state"] == "unknown"
    assert slurm.calls("sacct") == []


def test_preemption_that_cancels_leaves_a_run_that_needs_to_be_submitted_again(
    slurm: Slurm, make_run: MakeRun, rows: Rows
) -> None:
    make_run("a", "7", step=1)
    slurm.answer("sacct", "7|PREEMPTED|60\n")
    row = rows()["a"]
    assert (row["state"], row["last_end"]) == ("needs resubmit", "preempted")
    assert "submit again" in row["note"]


def test_a_job_that_ended_at_once_without_a_log_names_the_log(
    slurm: Slurm, make_run: MakeRun, rows: Rows
) -> None:
    output = make_run("a", "7", log=False)
    slurm.answer("sacct", "7|FAILED|0\n")
    row = rows()["a"]
    assert row["state"] == "log path"
    assert str(output.job / "7_0_log.out") in row["note"]


def test_the_time_that_is_left_is_the_measured_pace_and_only_for_what_runs(
    slurm: Slurm, make_run: MakeRun, rows: Rows
) -> None:
    make_run("runs", "7", step=2)
    make_run("waits", "8", step=2, reason="preempted")
    make_run("starts", "9")
    slurm.answer(
        "squeue",
        "7|RUNNING|None|dlbhpc-job|dlbhpc:t7\n"
        "8|PENDING|Priority|dlbhpc-job|dlbhpc:t8\n"
        "9|RUNNING|None|dlbhpc-job|dlbhpc:t9\n",
    )
    shown = rows()
    left = (shown["runs"]["total_steps"] - 2) * 5.0
    assert shown["runs"]["eta_seconds"] == pytest.approx(left)
    assert shown["waits"]["training_seconds_left"] == pytest.approx(left)
    assert shown["waits"]["eta_seconds"] is None
    assert shown["starts"]["eta_seconds"] is None


def test_the_table_has_a_row_for_each_run_and_a_dash_for_what_is_not_known(
    slurm: Slurm, make_run: MakeRun, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run("a", "7", step=2)
    make_run("b")
    slurm.answer("squeue", "7|RUNNING|None|dlbhpc-job|dlbhpc:t7\n")
    assert main(["status", "--root", str(run.launch.layout.root)]) == 0
    head, first, second = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == "run recipe dataset state job step attempts last end ETA".split()
    assert first == "checkpoints/a reference_mdlm pydoc running 7 2/7 1 - 0:00:25".split()
    assert second == "checkpoints/b reference_mdlm pydoc not begun - 0/7 0 - -".split()
