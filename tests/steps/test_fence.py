from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.steps import (
    Fenced,
    StepError,
    StepRecord,
    StorageError,
    begin_attempt,
    files,
    list_steps,
    newest_attempt,
    open_publication,
    read_pointer,
    recover,
    step_name,
)

Publish = Callable[..., StepRecord]


def test_attempts_are_numbered_from_one(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "steps"
    assert newest_attempt(folder) == 0
    assert [begin_attempt(folder) for _ in range(3)] == [1, 2, 3]
    assert newest_attempt(folder) == 3
    assert sorted(path.name for path in (folder / "fence").iterdir()) == [
        "00001.json",
        "00002.json",
        "00003.json",
    ]


def test_two_that_begin_at_once_get_two_numbers(
    steps_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.create
    others: list[int] = []

    def beaten(path: Path) -> int:
        if path.parent.name == "fence" and not others:
            monkeypatch.setattr(files, "create", real)
            others.append(begin_attempt(steps_dir))
        return real(path)

    monkeypatch.setattr(files, "create", beaten)
    assert begin_attempt(steps_dir) == 3
    assert others == [2]


def test_one_number_given_to_two_is_noticed(
    steps_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where exclusive creation is not exclusive."""
    real = files.sync_folder

    def overwritten(path: Path) -> None:
        real(path)
        if path.name == "fence":
            monkeypatch.setattr(files, "sync_folder", real)
            (path / "00002.json").write_text('{"attempt": 2, "owner": "another"}')

    monkeypatch.setattr(files, "sync_folder", overwritten)
    assert begin_attempt(steps_dir) == 3


def test_numbers_go_on_after_the_fence_was_lost(tmp_path: Path, publish: Publish) -> None:
    steps_dir = tmp_path / "steps"
    for _ in range(4):
        begin_attempt(steps_dir)
    publish(steps_dir, 10, 4)
    for path in (steps_dir / "fence").iterdir():
        path.unlink()
    (steps_dir / "fence").rmdir()
    assert begin_attempt(steps_dir) == 5
    assert recover(steps_dir).record == list_steps(steps_dir)[0]


def test_strange_names_beside_the_fences_are_no_attempts(steps_dir: Path) -> None:
    for name in ("7.json", "00009.json.tmp", "9999999999.json", "00008"):
        (steps_dir / "fence" / name).write_text("{}")
    assert newest_attempt(steps_dir) == 1


def test_an_older_attempt_is_refused_from_the_start(steps_dir: Path) -> None:
    begin_attempt(steps_dir)
    with pytest.raises(Fenced, match="attempt 2 owns this run; attempt 1 must not publish"):
        open_publication(steps_dir, step=10, attempt=1).__enter__()
    assert not list(steps_dir.glob(".work-*"))


def test_an_attempt_overtaken_while_it_writes_is_refused(steps_dir: Path, publish: Publish) -> None:
    publish(steps_dir, 10)
    with (
        pytest.raises(Fenced),
        open_publication(steps_dir, step=20, attempt=1) as publication,
    ):
        with publication.create("training_state.pt") as file:
            file.write(b"late")
        begin_attempt(steps_dir)
        publication.commit(contract={}, world=1)
    assert [path.name for path in steps_dir.glob("*step-*")] == [step_name(10)]


def test_an_attempt_whose_folder_the_successor_cleared_is_fenced_not_failing(
    steps_dir: Path, contract: dict[str, Any]
) -> None:
    with (
        pytest.raises(Fenced),
        open_publication(steps_dir, step=20, attempt=1) as publication,
    ):
        with publication.create("training_state.pt") as file:
            file.write(b"late")
        begin_attempt(steps_dir)
        recover(steps_dir)
        assert not list(steps_dir.glob(".work-*"))
        publication.create("model_bf16.pt")


def test_a_write_that_fails_after_the_successor_began_is_fenced(
    steps_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(descriptor: int, view: memoryview) -> int:
        raise OSError(errno.ESTALE, "the successor removed it")

    with (
        pytest.raises(Fenced),
        open_publication(steps_dir, step=20, attempt=1) as publication,
        publication.create("training_state.pt") as file,
    ):
        begin_attempt(steps_dir)
        monkeypatch.setattr(os, "write", stale)
        try:
            file.write(bytes(2 << 20))
        except OSError:
            raise RuntimeError("as an archive writer does") from None


def test_a_late_publisher_moves_nothing_of_its_successors(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it cannot make sense of what it finds under its step's name."""
    real = files.exists
    theirs: list[StepRecord] = []

    def exists(path: Path) -> bool:
        if path.name == step_name(20) and not theirs:
            monkeypatch.setattr(files, "exists", real)
            theirs.append(publish(steps_dir, 20, begin_attempt(steps_dir), contract={"seed": 7}))
        return real(path)

    monkeypatch.setattr(files, "exists", exists)
    with pytest.raises(Fenced):
        publish(steps_dir, 20)
    assert list_steps(steps_dir) == tuple(theirs)
    assert not (steps_dir / "quarantine").exists()


def overtaken_at_rename(
    steps_dir: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> None:
    """Do ``meanwhile`` after the publisher looked at the fence and before it renames."""
    real = files.rename

    def rename(source: Path, target: Path, arrived: Callable[[], bool]) -> None:
        if target.name.startswith("step-"):
            monkeypatch.setattr(files, "rename", real)
            meanwhile()
        real(source, target, arrived)

    monkeypatch.setattr(files, "rename", rename)


def test_a_step_published_after_a_newer_attempt_began_is_rejected(
    steps_dir: Path,
    publish: Publish,
    contract: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish(steps_dir, 10)
    overtaken_at_rename(steps_dir, monkeypatch, lambda: begin_attempt(steps_dir))
    with pytest.raises(Fenced):
        publish(steps_dir, 20)
    assert (steps_dir / step_name(20)).exists()
    pointer = read_pointer(steps_dir)
    assert pointer is not None
    assert pointer.step == 10
    assert [record.step for record in list_steps(steps_dir)] == [10]

    recovery = recover(steps_dir, contract=contract, world=2)
    assert recovery.record is not None
    assert recovery.record.step == 10
    (skipped,) = recovery.skipped
    assert "published by attempt 1 after attempt 2 had begun" in skipped.reason
    assert not (steps_dir / step_name(20)).exists()
    assert publish(steps_dir, 20, 2).attempt == 2


def test_a_late_step_makes_room_for_the_successors(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtaken_at_rename(steps_dir, monkeypatch, lambda: begin_attempt(steps_dir))
    with pytest.raises(Fenced):
        publish(steps_dir, 20, state=b"of the ghost")
    record = publish(steps_dir, 20, 2)
    assert record.attempt == 2
    assert (steps_dir / step_name(20) / "training_state.pt").read_bytes() == b"state of 20"
    assert len(list((steps_dir / "quarantine").glob("step-*.reason.json"))) == 1


def test_a_late_publisher_does_not_replace_the_successors_step(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile() -> None:
        publish(steps_dir, 20, begin_attempt(steps_dir))

    overtaken_at_rename(steps_dir, monkeypatch, meanwhile)
    with pytest.raises(Fenced, match="attempt 2"):
        publish(steps_dir, 20, state=b"of the ghost")
    recovery = recover(steps_dir)
    assert recovery.record is not None
    assert (recovery.record.attempt, recovery.skipped) == (2, ())


def test_a_step_seen_by_the_newer_attempt_stays_good(steps_dir: Path, publish: Publish) -> None:
    publish(steps_dir, 10)
    for _ in range(3):
        begin_attempt(steps_dir)
    record = recover(steps_dir).record
    assert record is not None
    assert (record.step, record.attempt) == (10, 1)


def test_a_late_step_stays_rejected_in_the_attempts_after(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(steps_dir, 10)
    overtaken_at_rename(steps_dir, monkeypatch, lambda: begin_attempt(steps_dir))
    with pytest.raises(Fenced):
        publish(steps_dir, 20)
    begin_attempt(steps_dir)  # sees the late step, which does not make it good
    record = recover(steps_dir).record
    assert record is not None
    assert record.step == 10


def test_an_attempt_that_died_before_it_looked_rejects_nothing(
    steps_dir: Path, publish: Publish
) -> None:
    (steps_dir / "fence" / "00002.json").write_text("")
    with pytest.raises(Fenced):
        publish(steps_dir, 10, 1)
    (steps_dir / "fence" / "00002.json").unlink()
    publish(steps_dir, 10, 1)
    for content in ("", "garbage", '{"attempt": 2}', '{"steps": 3}', '{"steps": [[[], []], 1]}'):
        (steps_dir / "fence" / "00002.json").write_text(content)
        recovery = recover(steps_dir)
        if content.startswith('{"steps": ['):
            assert recovery.record is None  # a list, and the step is not on it
        else:
            assert recovery.record is not None


def test_a_step_that_could_not_be_read_at_the_beginning_is_not_late(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(steps_dir, 10)
    real = files.open_regular

    def stale(path: Path) -> int:
        if path.name == "COMPLETE.json":
            raise OSError(errno.ESTALE, "for a moment")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "open_regular", stale)
        assert begin_attempt(steps_dir) == 2
    assert recover(steps_dir).record == list_steps(steps_dir)[0]


def test_a_step_without_an_attempt_is_nobodys_late_work(steps_dir: Path, publish: Publish) -> None:
    """Another tool's, or one that a person put there: the contract and the digests decide."""
    begin_attempt(steps_dir)
    publish(steps_dir, 10, 2)
    path = steps_dir / step_name(10) / "COMPLETE.json"
    document = json.loads(path.read_text())
    del document["attempt"]
    path.write_text(json.dumps(document))
    begin_attempt(steps_dir)
    assert recover(steps_dir).record is not None


def test_a_linked_steps_folder_is_refused(tmp_path: Path, steps_dir: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(steps_dir)
    for work in (begin_attempt, recover, list_steps):
        with pytest.raises(StepError, match="symbolic link"):
            work(link)
    with pytest.raises(StepError, match="symbolic link"):
        open_publication(link, step=1, attempt=1).__enter__()


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, system: Callable[..., Any]
) -> None:
    folder = tmp_path / "steps"
    _, result = system(lambda: begin_attempt(folder), 0, fail=errno.EROFS)
    assert isinstance(result, StorageError)
    assert str(folder) in str(result)
    assert "read-only" in str(result)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="ENOTDIR"):
        begin_attempt(tmp_path / "file")
