"""Which part of which file `logs` prints."""

from __future__ import annotations

import json

import pytest

from dlbhpc.cli.main import main
from dlbhpc.layout import OutputLayout
from dlbhpc.run.record import Run, write_records


@pytest.fixture
def output(run: Run) -> OutputLayout:
    """A run whose job 7 was requeued once, and whose job 8 went on."""
    write_records(run)
    output = run.launch.output
    output.job.mkdir()
    text = {"7": "one\ntwo\n", "8": "three\nfour"}
    for number, job_id, offset in ((1, "7", 0), (2, "7", len("one\n")), (3, "8", 0)):
        log = output.job / f"{job_id}_0_log.out"
        log.write_text(text[job_id])
        output.attempt(number).mkdir(parents=True)
        record = {"attempt": number, "job_id": job_id, "resumed_from": None}
        record["log"] = {"path": str(log), "offset": offset}
        (output.attempt(number) / "attempt.json").write_text(json.dumps(record))
    (output.attempt(2) / "rank-1.log").write_text("rank 1 of attempt 2\n")
    return output


def logs(output: OutputLayout, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["logs", str(output.folder), *flags]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "three\nfour\n"),
        (["--attempt", "1"], "one\n"),
        (["--attempt", "2"], "two\n"),
        (["--attempt", "3"], "three\nfour\n"),
        (["--attempt", "1", "--follow"], "one\n"),
        (["--attempt", "2", "--rank", "1"], "rank 1 of attempt 2\n"),
    ],
)
def test_what_is_printed(
    output: OutputLayout, capsys: pytest.CaptureFixture[str], flags: list[str], text: str
) -> None:
    assert logs(output, capsys, *flags) == text


def test_the_job_decides_where_its_log_lies(
    output: OutputLayout, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = output.folder / "elsewhere.log"
    elsewhere.write_text("here\n")
    path = output.attempt(3) / "attempt.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "log": {"path": str(elsewhere), "offset": 0}}))
    assert logs(output, capsys) == "here\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--attempt", "4"], "has no attempt 4: it has 1, 2, 3"),
        (["--rank", "1"], "the attempt has no rank 1"),
        (["--attempt", "2", "--rank", "-1"], "the attempt has no rank -1"),
    ],
)
def test_what_is_not_there_is_a_sentence(
    output: OutputLayout, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(["logs", str(output.folder), *flags]) == 2
    assert message in capsys.readouterr().err


def test_an_attempt_that_does_not_name_its_log_is_a_sentence(
    output: OutputLayout, capsys: pytest.CaptureFixture[str]
) -> None:
    (output.attempt(1) / "attempt.json").write_text("{")
    assert main(["logs", str(output.folder), "--attempt", "1"]) == 2
    assert "does not say where its log lies" in capsys.readouterr().err


def test_a_run_without_a_log_says_what_its_state_is(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    write_records(run)
    assert main(["logs", str(run.launch.output.folder)]) == 2
    assert "the job has not begun" in capsys.readouterr().err
