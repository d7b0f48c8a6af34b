"""A student whose teacher was not complete when it was submitted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.command import Launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.files import file_digest
from dlbhpc.layout import OutputLayout
from dlbhpc.recipe.model import Teacher
from dlbhpc.run import inputs
from dlbhpc.run import teacher as teachers
from dlbhpc.run.inputs import prepare_run
from dlbhpc.run.record import Run, read_run, write_records
from dlbhpc.run.teacher import is_pending, same_run, settle_teacher


@pytest.fixture
def teacher(root: Path) -> OutputLayout:
    output = OutputLayout(root / "checkpoints" / "teacher")
    output.folder.mkdir(parents=True)
    return output


@pytest.fixture
def student(launch: Launch, teacher: OutputLayout, monkeypatch: pytest.MonkeyPatch) -> Run:
    # What a checkpoint must hold to teach is tested with the teachers themselves.
    monkeypatch.setattr(teachers, "check_launch_teacher", lambda launch: None)
    monkeypatch.setattr(inputs, "check_launch_teacher", lambda launch: None)
    launch.output.folder.mkdir(parents=True)
    recipe = replace(launch.recipe, teacher=Teacher("reference_mdlm", "masked_mdlm", None))
    launch = replace(launch, recipe=recipe, teacher=teacher.folder / "model.ckpt")
    run = prepare_run(launch, "site", 300, 60, teacher_run=teacher.folder)
    write_records(run)
    return run


def complete(teacher: OutputLayout, content: bytes = b"weights") -> str:
    checkpoint = teacher.folder / "model.ckpt"
    checkpoint.write_bytes(content)
    teacher.composed_config.write_text("a: 1\n")
    record = {
        "identity": "0",
        "identity_fields": {},
        "checkpoint": "model.ckpt",
        "checkpoint_bytes": len(content),
        "checkpoint_sha256": file_digest(checkpoint),
        "composed_config_sha256": file_digest(teacher.composed_config),
        "step": 5,
    }
    teacher.completed.write_text(json.dumps(record))
    return file_digest(checkpoint)


def test_a_missing_teacher_is_refused_with_the_way_to_train_it(student: Run) -> None:
    with pytest.raises(DlbhpcError, match="add --with-teacher to train it first"):
        prepare_run(student.launch, "site", 300, 60)


def test_the_identity_is_completed_once_the_teacher_is(student: Run, teacher: OutputLayout) -> None:
    assert is_pending(student.identity)
    digest = complete(teacher)
    settled = settle_teacher(student)
    assert settled.identity == {**student.identity, "teacher": digest}
    assert read_run(student.launch.output) == settled
    # And it is the identity of one that was submitted when the teacher was there already.
    assert prepare_run(student.launch, "site", 300, 60).identity == settled.identity
    complete(teacher, b"other weights")
    assert settle_teacher(settled) == settled, "once and for ever"


def test_it_is_not_settled_on_a_checkpoint_that_is_not_the_completed_one(
    student: Run, teacher: OutputLayout
) -> None:
    complete(teacher)
    (teacher.folder / "model.ckpt").write_bytes(b"WEIGHTS")
    with pytest.raises(DlbhpcError, match="sha256 differs"):
        settle_teacher(student)
    assert is_pending(read_run(student.launch.output).identity)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ({"reason": "cancelled", "status": 1}, "the teacher failed: cancelled"),
        (None, "the teacher failed: interrupted"),
    ],
)
def test_it_does_not_begin_without_its_teacher_and_says_why(
    student: Run, teacher: OutputLayout, end: dict[str, object] | None, why: str
) -> None:
    folder = teacher.attempt(1)
    folder.mkdir(parents=True)
    (folder / "attempt.json").write_text(json.dumps({"attempt": 1, "job_id": "1"}))
    if end is not None:
        (folder / "end.json").write_text(json.dumps(end))
    # A checkpoint that lies there already proves nothing.
    (teacher.folder / "model.ckpt").write_bytes(b"half trained")
    with pytest.raises(DlbhpcError, match=why):
        settle_teacher(student)


def test_a_teacher_whose_job_never_began_is_named(student: Run, teacher: OutputLayout) -> None:
    with pytest.raises(DlbhpcError, match="its job ended before it began"):
        settle_teacher(student)


def test_a_pending_teacher_is_no_difference_but_another_one_is() -> None:
    pending, known = {"teacher": "pending: /x", "seed": 1}, {"teacher": "abc", "seed": 1}
    assert same_run(known, recorded=pending) == pending
    assert same_run(pending, recorded=known) == pending
    assert same_run({**known, "seed": 2}, recorded=pending) == {**pending, "seed": 2}
