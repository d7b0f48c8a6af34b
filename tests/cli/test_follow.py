"""What a follower shows."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from dlbhpc.cli import follow as following
from dlbhpc.cli.follow import Printer, Tail, duration, follow, format_progress
from dlbhpc.layout import OutputLayout

PROGRESS = {"step": 60, "total": 240, "loss": 5.1234, "steps_per_second": 0.5, "attempt": 2}


def test_progress_is_one_line_with_the_time_that_is_left() -> None:
    text = format_progress(PROGRESS)
    assert text == "step 60/240  loss 5.123  0.50 steps/s  ETA 0:06:00  attempt 2"


@pytest.mark.parametrize("missing", ["loss", "steps_per_second"])
def test_what_is_not_known_yet_is_left_out(missing: str) -> None:
    text = format_progress({**PROGRESS, missing: None})
    assert "None" not in text
    assert text.startswith("step 60/240")
    assert text.endswith("attempt 2")


def test_a_tail_gives_each_whole_line_once(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "log")
    assert tail.lines() == []
    with (tmp_path / "log").open("w") as log:
        log.write("one\ntwo\nthr")
        log.flush()
        assert tail.lines() == ["one", "two"]
        log.write("ee\n\n")
        log.flush()
        assert tail.lines() == ["three", ""]
        assert tail.lines() == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_progress_in_place() -> None:
    out = Terminal()
    printer = Printer(out)
    printer.progress("step 1")
    printer.progress("step 1")
    printer.progress("step 2")
    printer.message("done")
    assert out.getvalue() == "\r\x1b[Kstep 1\r\x1b[Kstep 2\r\x1b[Kdone\n"


def test_a_pipe_gets_plain_lines_and_not_every_step() -> None:
    out = io.StringIO()
    printer = Printer(out)
    for step in range(100):
        printer.progress(f"step {step}")
    printer.message("done")
    assert out.getvalue() == "step 0\ndone\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00:00"), (59.6, "0:01:00"), (3661, "1:01:01"), (90061, "1-01:01:01")],
)
def test_a_duration_is_written_as_slurm_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_log_of_the_job_that_goes_on_is_followed_and_not_that_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = OutputLayout(tmp_path)
    output.job.mkdir()

    def begin(number: int, job_id: str) -> None:
        log = output.job / f"{job_id}_0_log.out"
        log.write_text(f"dlbhpc: job {job_id} speaks\nof other things\n")
        output.attempt(number).mkdir(parents=True)
        record = {"attempt": number, "job_id": job_id, "log": {"path": str(log), "offset": 0}}
        (output.attempt(number) / "attempt.json").write_text(json.dumps(record))

    class Watch:
        """Alive at three looks; the links of a chain begin one after the other."""

        def __init__(self, output: OutputLayout) -> None:
            self.looks = 0

        def alive(self) -> bool:
            self.looks += 1
            if self.looks in (2, 3):
                begin(self.looks, "abc"[self.looks - 1])
            return self.looks < 4

    begin(1, "a")
    monkeypatch.setattr(following, "Watch", Watch)
    monkeypatch.setattr(following, "_POLL_SECONDS", 0)
    assert follow(output, "b") == 1
    assert capsys.readouterr().out.splitlines() == ["job b speaks", "job c speaks", ""]
