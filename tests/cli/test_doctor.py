"""What `doctor` asks, prints and exits with, where Slurm's commands are stand-ins or missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.cli.main import main
from dlbhpc.run.record import Run, write_records

RECORDED = Path(__file__).parents[1] / "scheduler" / "slurm_22_05"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scontrol that answers as a Slurm 22.05 did, and a munge that works."""
    scripts = {
        "scontrol": f"""
case "$*" in
    ping) echo "Slurmctld(primary) at ctl is UP";;
    *config) cat {RECORDED}/config.txt;;
    *partition) cat {RECORDED}/partition.txt;;
    *node) cat {RECORDED}/node.txt;;
esac""",
        "munge": "echo credential",
        "unmunge": "cat",
    }
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def doctor(
    root: Path, capsys: pytest.CaptureFixture[str], *flags: str
) -> tuple[int, dict[str, dict[str, Any]]]:
    status = main(["doctor", "--json", "--root", str(root), *flags])
    return status, {row["check"]: row for row in json.loads(capsys.readouterr().out)}


def test_without_slurm_it_looks_at_this_machine_only(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    status, found = doctor(root, capsys, "--cluster", "local")
    assert status == 0
    assert set(found) == {"controller", "shared folder", "space", "containers"}
    assert "Slurm is not needed" in found["controller"]["means"]


def test_a_profile_of_slurms_without_slurm_is_a_problem(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    status, found = doctor(root, capsys, "--cluster", "slurm")
    assert (status, found["controller"]["level"]) == (1, "problem")
    assert "preemption" not in found


@pytest.mark.parametrize(
    ("partition", "status", "problems"),
    [
        ("requeue", 0, set()),
        ("requeue-now", 1, {"time to save"}),
        ("cancel-now", 1, {"preemption", "time to save"}),
        ("high", 0, set()),
    ],
)
def test_the_partition_decides(
    slurm: Path,
    root: Path,
    capsys: pytest.CaptureFixture[str],
    partition: str,
    status: int,
    problems: set[str],
) -> None:
    answer, found = doctor(root, capsys, "--cluster", "slurm", "--partition", partition)
    assert answer == status
    assert {name for name, row in found.items() if row["level"] == "problem"} == problems
    assert found["munge"]["level"] == "ok"


def test_the_saves_of_earlier_runs_are_the_measure(
    slurm: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    write_records(run)
    folder = run.launch.output.attempt(1)
    folder.mkdir(parents=True)
    event = {"event": "saved", "step": 1, "seconds": 45.25, "bytes": 3 << 20}
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    root = run.launch.layout.root
    status, found = doctor(root, capsys, "--cluster", "slurm", "--partition", "requeue")
    assert status == 1
    assert "a save takes 45.2 s" in found["time to save"]["found"]
    assert "3.0 MiB written as a trial" in found["space"]["found"]
    assert not list(root.glob(".dlbhpc-doctor*"))


def test_a_reader_gets_a_level_a_finding_and_what_to_change(
    slurm: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--cluster", "slurm", "--partition", "cancel-now"]
    assert main(["doctor", "--root", str(root), *flags]) == 1
    text = capsys.readouterr().out
    assert "problem  preemption     PreemptMode=CANCEL by partition cancel-now" in text
    assert "-> use a partition or QOS with PreemptMode=REQUEUE" in text
