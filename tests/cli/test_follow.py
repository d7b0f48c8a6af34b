"""What a follower shows."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from dlbhpc.cli.follow import Printer, Tail, format_progress

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
