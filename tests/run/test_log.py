"""Where an attempt's words go, and where a reader finds them again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlbhpc.layout import CHECKOUT, OutputLayout
from dlbhpc.run.log import (
    LogPart,
    failed_ranks,
    last_words_of_failed_ranks,
    log_part,
    own_log,
    rank_of,
)


def begun(output: OutputLayout, number: int, path: Path, offset: int) -> None:
    output.attempt(number).mkdir(parents=True)
    record = {"attempt": number, "log": {"path": str(path), "offset": offset}}
    (output.attempt(number) / "attempt.json").write_text(json.dumps(record))


@pytest.fixture
def output(tmp_path: Path) -> OutputLayout:
    layout = OutputLayout(tmp_path / "run")
    layout.job.mkdir(parents=True)
    return layout


def python(code: str, **files: object) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, check=True, **files)  # type: ignore[call-overload]


def test_a_process_knows_the_file_that_its_messages_go_to(tmp_path: Path) -> None:
    path = tmp_path / "a log"
    path.write_text("12345")
    code = "from dlbhpc.run.log import own_log; import json; print(json.dumps(own_log()))"
    with path.open("ab") as log, (tmp_path / "answer").open("wb") as answer:
        python(code, stdout=answer, stderr=log)
    assert json.loads((tmp_path / "answer").read_text()) == {"path": str(path), "offset": 5}


def test_messages_that_go_to_no_file_have_no_place() -> None:
    reading, writing = os.pipe()
    try:
        assert own_log(writing) is None
    finally:
        os.close(reading)
        os.close(writing)
    assert own_log(writing) is None


def test_the_attempts_of_a_requeued_job_share_a_file(output: OutputLayout, tmp_path: Path) -> None:
    log, other = output.job / "7_0_log.out", output.job / "8_0_log.out"
    log.touch()
    other.touch()
    begun(output, 1, log, 0)
    begun(output, 2, log, 120)
    begun(output, 3, other, 0)
    assert log_part(output, 1) == LogPart(log, 0, 120)
    assert log_part(output, 2) == LogPart(log, 120, None)
    assert log_part(output, 3) == LogPart(other, 0, None)
    assert log_part(output, 4) is None


def test_a_run_that_was_moved_keeps_its_logs(output: OutputLayout) -> None:
    (output.job / "7_0_log.out").touch()
    begun(output, 1, Path("/another/place/job/7_0_log.out"), 3)
    assert log_part(output, 1) == LogPart(output.job / "7_0_log.out", 3, None)


@pytest.mark.parametrize(
    "record", ['{"attempt": 1}', '{"log": null}', '{"log": {"offset": "x"}}', "{"]
)
def test_a_record_that_does_not_name_the_log(output: OutputLayout, record: str) -> None:
    output.attempt(1).mkdir(parents=True)
    (output.attempt(1) / "attempt.json").write_text(record)
    assert log_part(output, 1) is None


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, 0),
        ({"SLURM_PROCID": "5", "LOCAL_RANK": "1"}, 5),
        ({"LOCAL_RANK": "3"}, 3),
        ({"SLURM_PROCID": "x"}, 0),
    ],
)
def test_the_rank_of_a_task(environment: dict[str, str], rank: int) -> None:
    assert rank_of(environment) == rank


def test_a_rank_above_0_prints_to_its_own_file_and_so_does_what_it_becomes(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from dlbhpc.run.log import speak_apart\n"
        "speak_apart(Path(sys.argv[1]), int(sys.argv[2]))\n"
        "os.execvp('bash', ['bash', '-c', 'echo out; echo err >&2'])"
    )
    heard = {}
    for rank in (0, 1, 1):
        argv = [sys.executable, "-c", code, str(tmp_path), str(rank)]
        done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, check=True)
        heard[rank] = done.stdout + done.stderr
    assert heard == {0: "out\nerr\n", 1: ""}
    assert (tmp_path / "rank-1.log").read_text() == "out\nerr\nout\nerr\n"


def test_a_file_that_cannot_be_opened_silences_nobody(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from dlbhpc.run.log import speak_apart\n"
        f"speak_apart(Path({str(tmp_path / 'missing')!r}), 1); print('heard')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "heard\n"


SRUN = """epoch 1
srun: error: n1: task 0: Killed
srun: error: n2: tasks 2,4-5: Exited with exit code 1
srun: error: n2: task 3: Terminated
"""


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("all is well\n", []),
        (SRUN, [2, 4, 5]),
        ("srun: error: n1: task 1: Segmentation fault (core dumped)\n", [1]),
        ("srun: error: n1: task 1: Out Of Memory\nsrun: error: n1: task 0: Killed\n", [1]),
        ("srun: error: n1: tasks 0-1: Killed\n", [0, 1]),
        ("spawn: error: task 3: Exited with exit code 7\n", [3]),
    ],
)
def test_the_ranks_that_failed_by_themselves(text: str, ranks: list[int]) -> None:
    assert failed_ranks(text) == ranks


def test_the_last_words_of_a_rank_that_failed_are_told(output: OutputLayout) -> None:
    log = output.job / "7_0_log.out"
    log.write_text("srun: error: n1: task 1: Exited with exit code 1\n")
    before = log.stat().st_size
    begun(output, 1, log, 0)
    begun(output, 2, log, before)
    (output.attempt(2) / "rank-1.log").write_text("of another rank\n")
    (output.attempt(2) / "rank-2.log").write_text("\n".join(f"line {i}" for i in range(50)))
    assert last_words_of_failed_ranks(output, 2) == []
    with log.open("a") as file:
        file.write("srun: error: n1: task 2: Exited with exit code 1\n")
    told = last_words_of_failed_ranks(output, 2)
    assert "rank 2 failed" in told[0]
    assert told[1:] == [f"  line {i}" for i in range(30, 50)]
