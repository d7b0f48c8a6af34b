"""How a run is named, and what is said of its state when its records are damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.cli.main import main
from dlbhpc.cli.runs import find_run
from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import Layout
from dlbhpc.run.record import Run, write_records
from dlbhpc.scheduler.control import mark_cancelled

RECIPE = "reference_mdlm"


@pytest.fixture
def submitted(run: Run) -> Run:
    write_records(run)
    return run


def attempt(run: Run, number: int, reason: str | None, job_id: str = "7") -> Path:
    folder = run.launch.output.attempt(number)
    folder.mkdir(parents=True)
    begun = {"attempt": number, "job_id": job_id, "resumed_from": None}
    (folder / "attempt.json").write_text(json.dumps(begun))
    if reason is not None:
        (folder / "end.json").write_text(json.dumps({"reason": reason, "status": 1}))
    return folder


def row(run: Run, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["status", "--json", "--root", str(run.launch.layout.root)]) == 0
    (only,) = json.loads(capsys.readouterr().out)
    assert isinstance(only, dict)
    return only


def state(run: Run, capsys: pytest.CaptureFixture[str]) -> str:
    text: str = row(run, capsys)["state"]
    return text


@pytest.mark.parametrize("name", [RECIPE, f"pydoc/{RECIPE}", f"self_trained/pydoc/{RECIPE}"])
def test_a_name_means_the_locked_run_where_there_is_one(submitted: Run, name: str) -> None:
    layout: Layout = submitted.launch.layout
    trial = layout.run_folder("pydoc", RECIPE, trial=True)
    trial.mkdir(parents=True)
    (trial / "run.json").write_text("{}")
    assert find_run(name, layout).folder == submitted.launch.output.folder
    assert find_run(f"trials/pydoc/{RECIPE}", layout).folder == trial


def test_a_name_that_fits_two_runs_lists_them(submitted: Run) -> None:
    layout = submitted.launch.layout
    other = layout.checkpoints / "other" / RECIPE
    other.mkdir(parents=True)
    (other / "run.json").write_text("{}")
    with pytest.raises(DlbhpcError, match="names more than one run: checkpoints/other/"):
        find_run(RECIPE, layout)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("storage", "storage"), (None, "interrupted"), ("could not begin", "could not begin")],
)
def test_a_run_without_a_job_shows_why_its_last_attempt_ended(
    submitted: Run, capsys: pytest.CaptureFixture[str], reason: str | None, expected: str
) -> None:
    attempt(submitted, 1, "preempted")
    attempt(submitted, 2, reason)
    assert state(submitted, capsys) == expected


def test_a_cancelled_job_that_was_killed_before_it_could_say_so(
    submitted: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt(submitted, 1, None)
    submitted.launch.output.job.mkdir()
    mark_cancelled(submitted.launch.output.job, "7")
    assert state(submitted, capsys) == "cancelled"


def test_a_run_is_never_complete_without_its_completion_record(
    submitted: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt(submitted, 1, "completed")
    assert state(submitted, capsys) == "interrupted"


def test_a_run_that_has_not_begun(submitted: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert state(submitted, capsys) == "not begun"


@pytest.mark.parametrize("name", ["run.json", "lease.json", "completed.json"])
@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff", b'{"step": "abc"}'])
def test_a_damaged_record_is_named_and_hides_no_other_run(
    submitted: Run, capsys: pytest.CaptureFixture[str], name: str, text: bytes
) -> None:
    (submitted.launch.output.folder / name).write_bytes(text)
    shown = row(submitted, capsys)
    assert shown["state"] == "damaged"
    assert name in shown["note"]
    assert main(["report", RECIPE, "--root", str(submitted.launch.layout.root)]) == 2
    assert name in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("attempt.json", b'{"attempt": "x"}'),
        ("attempt.json", b'{"attempt": 1, "resumed_from": "x"}'),
        ("progress.json", b'{"step": "x"}'),
        ("progress.json", b"\xff"),
        ("events.jsonl", b'{"event": "start"}\n\xff\xfe'),
        ("events.jsonl", b'[]\n{}\n{"event": "saved", "step": "x"}'),
        ("end.json", b'{"reason"'),
    ],
)
def test_what_an_attempt_told_may_be_torn(
    submitted: Run, capsys: pytest.CaptureFixture[str], name: str, text: bytes
) -> None:
    (attempt(submitted, 1, None) / name).write_bytes(text)
    assert state(submitted, capsys) in ("interrupted", "not begun")
    assert main(["report", RECIPE, "--root", str(submitted.launch.layout.root)]) == 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"step": 1, "val_ppl": null}', '{"a":'])
def test_a_damaged_evaluation_is_named(
    submitted: Run, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    folder = submitted.launch.output.evaluation
    folder.mkdir()
    (folder / "step-00000001.json").write_text(text)
    (folder / ".step-00000002.json").write_text("half")
    assert main(["report", RECIPE, "--root", str(submitted.launch.layout.root)]) == 2
    assert "step-00000001.json" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["preempt", "cancel"])
def test_nothing_to_stop_is_a_sentence(
    submitted: Run, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, RECIPE, "--root", str(submitted.launch.layout.root)]) == 2
    assert f"there is nothing to {command}" in capsys.readouterr().err
