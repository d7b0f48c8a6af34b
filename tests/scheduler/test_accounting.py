"""What Slurm's accounting answers, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlbhpc.scheduler.accounting import Accounted, parse_accounting, read_accounting


def stub_sacct(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = folder / "bin" / "sacct"
    path.parent.mkdir()
    path.write_text(f'#!/bin/bash\necho "$@" >>{folder}/calls\n{script}\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")


def test_each_execution_of_a_job_has_its_state() -> None:
    lines = [
        "sacct: warning: something",
        "41|PREEMPTED|7",
        "42|CANCELLED by 1000|60",
        "700_3|TIMEOUT|",
        "41|NODE_FAIL|8",
        "43||5",
        "",
        "41|RUNNING|9",
    ]
    found = parse_accounting(lines)
    assert found == {
        "41": Accounted("41", ("PREEMPTED", "NODE_FAIL", "RUNNING"), 9),
        "42": Accounted("42", ("CANCELLED",), 60),
        "700_3": Accounted("700_3", ("TIMEOUT",)),
    }
    assert found["41"].state == "RUNNING"
    assert [found["41"].state_of(count) for count in (1, 3)] == ["NODE_FAIL", None]


def test_many_jobs_are_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_sacct(tmp_path, monkeypatch, "echo '41|COMPLETED|7'")
    found = read_accounting([*map(str, range(40, 240)), "41", "", "no id; rm -rf x"])
    assert found == {"41": Accounted("41", ("COMPLETED",), 7)}
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert "--jobs=100,101," in call and ";" not in call


def test_no_jobs_are_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_sacct(tmp_path, monkeypatch, "")
    assert read_accounting([]) == {}
    assert not (tmp_path / "calls").exists()


@pytest.mark.parametrize(
    "script",
    ["", "exit 1", "echo 'sacct: error: slurmdbd down' >&2; exit 1", "echo garbage"],
)
def test_an_answer_that_says_nothing_is_no_end_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    stub_sacct(tmp_path, monkeypatch, script)
    assert read_accounting(["41"]) == {}


def test_a_site_without_sacct_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert read_accounting(["41"]) == {}
