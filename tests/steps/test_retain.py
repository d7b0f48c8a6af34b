from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.steps import (
    StepError,
    StepRecord,
    StorageError,
    files,
    list_steps,
    recover,
    retain,
    step_name,
)

Publish = Callable[..., StepRecord]


@pytest.fixture
def five(steps_dir: Path, publish: Publish) -> Path:
    for step in (10, 20, 30, 40, 50):
        publish(steps_dir, step)
    return steps_dir


def steps_in(folder: Path) -> list[int]:
    return [record.step for record in list_steps(folder)]


def test_the_last_few_are_kept(five: Path) -> None:
    assert retain(five) == (10, 20, 30)
    assert steps_in(five) == [40, 50]
    assert retain(five) == ()
    assert retain(five, keep_last=1) == (40,)
    assert sorted(path.name for path in five.iterdir()) == ["fence", "latest.json", step_name(50)]


@pytest.mark.parametrize("milestones", [{10, 30}, lambda step: step in (10, 30), [10, 30]])
def test_milestones_are_kept(five: Path, milestones: Any) -> None:
    assert retain(five, 1, milestones) == (20, 40)
    assert steps_in(five) == [10, 30, 50]


def test_held_steps_are_kept(five: Path) -> None:
    (five / "holds").mkdir()
    (five / "holds" / "student.json").write_text('{"step": 20, "by": "mdlm_di4c"}')
    (five / "holds" / "README").write_text("not a hold")
    assert retain(five, 1) == (10, 30, 40)
    assert steps_in(five) == [20, 50]


@pytest.mark.parametrize("content", ["", "{", '{"step": "20"}', '{"step": true}', "{}", "[20]"])
def test_a_hold_that_cannot_be_understood_keeps_everything(
    five: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    (five / "holds").mkdir()
    (five / "holds" / "student.json").write_text(content)
    with caplog.at_level(logging.WARNING):
        assert retain(five, 1) == ()
    assert steps_in(five) == [10, 20, 30, 40, 50]
    assert "student.json" in caplog.text


def test_the_pointers_step_is_kept(five: Path, publish: Publish) -> None:
    """It may be what a reader is about to open."""
    pointer = (five / "latest.json").read_bytes()
    publish(five, 60)
    publish(five, 70)
    (five / "latest.json").write_bytes(pointer)
    assert retain(five, 1) == (10, 20, 30, 40, 60)
    assert steps_in(five) == [50, 70]


def test_torn_and_foreign_folders_are_neither_counted_nor_deleted(five: Path) -> None:
    (five / step_name(60)).mkdir()
    (five / step_name(50) / "training_state.pt").write_bytes(b"short")
    assert retain(five, 2) == (10, 20)
    assert steps_in(five) == [30, 40]
    assert (five / step_name(50)).exists()
    assert (five / step_name(60)).exists()


def test_another_runs_steps_do_not_crowd_ours_out(five: Path, publish: Publish) -> None:
    for step in (60, 70, 80):
        publish(five, step, contract={"seed": 7})
    publish(five, 90, world=4)
    assert retain(five, 2) == (10, 20, 30, 60)
    assert steps_in(five) == [40, 50, 70, 80, 90]


@pytest.mark.parametrize("keep_last", [0, -1])
def test_the_newest_is_never_given_up(five: Path, keep_last: int) -> None:
    with pytest.raises(StepError, match="keep_last must be 1 or more"):
        retain(five, keep_last)


def test_what_is_half_deleted_is_no_step_and_goes_with_the_next_attempt(
    five: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(files, "remove", lambda path: None)
        assert retain(five) == (10, 20, 30)
    assert len(list(five.glob(".work-00000-*"))) == 3
    assert recover(five).skipped == ()
    assert not list(five.glob(".work-*"))


def test_a_step_that_cannot_be_moved_out_is_an_error(
    five: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EACCES, "no", str(source))

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(StorageError, match=f"removing .*{step_name(10)} failed"):
        retain(five)
    assert steps_in(five) == [10, 20, 30, 40, 50]
