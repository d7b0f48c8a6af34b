from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.steps import (
    InvalidStep,
    StepError,
    StepRecord,
    StorageError,
    begin_attempt,
    files,
    find_newest,
    list_steps,
    read_pointer,
    recover,
    step_name,
)

Publish = Callable[..., StepRecord]


def tree(folder: Path) -> dict[str, bytes | str | None]:
    """Every name under a folder with its content."""
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in sorted(folder.rglob("*"))
    }


def test_nothing_published_is_no_error(tmp_path: Path, steps_dir: Path) -> None:
    for folder in (tmp_path / "nowhere", steps_dir):
        recovery = recover(folder)
        assert (recovery.record, recovery.path, recovery.skipped) == (None, None, ())
        assert recovery.pointer_was == "missing"
    assert not (tmp_path / "nowhere").exists()


def test_the_newest_valid_step_wins_over_the_pointer(steps_dir: Path, publish: Publish) -> None:
    """As after a crash between the folder's rename and the pointer's replacement."""
    publish(steps_dir, 10)
    stale = (steps_dir / "latest.json").read_bytes()
    newest = publish(steps_dir, 20)
    (steps_dir / "latest.json").write_bytes(stale)
    recovery = recover(steps_dir)
    assert recovery.record == newest
    assert recovery.path == steps_dir / step_name(20)
    assert recovery.pointer_was == "stale"
    assert recover(steps_dir).pointer_was == "current"


@pytest.mark.parametrize(
    ("content", "was"),
    [
        (None, "missing"),
        (b"", "unreadable"),
        (b"garbage", "unreadable"),
        (b"[1]", "unreadable"),
        (b'{"step": true, "state_sha256": "x"}', "unreadable"),
        (b'{"step": 20}', "unreadable"),
        (b'{"step": 1e400, "state_sha256": "x"}', "unreadable"),
        (b'{"step": 2500, "state_sha256": "x"}', "dangling"),
        (b'{"step": 20, "state_sha256": "x"}', "stale"),
    ],
)
def test_any_pointer_is_repaired(
    steps_dir: Path, publish: Publish, content: bytes | None, was: str
) -> None:
    record = publish(steps_dir, 20)
    (steps_dir / "latest.json").unlink()
    if content is not None:
        (steps_dir / "latest.json").write_bytes(content)
    recovery = recover(steps_dir)
    assert (recovery.record, recovery.pointer_was) == (record, was)
    pointer = read_pointer(steps_dir)
    assert pointer is not None
    assert (pointer.step, pointer.state_sha256) == (20, record.state_sha256)


def test_a_linked_pointer_is_not_followed(
    steps_dir: Path, publish: Publish, tmp_path: Path
) -> None:
    publish(steps_dir, 20)
    shutil.copy(steps_dir / "latest.json", tmp_path / "target")
    (steps_dir / "latest.json").unlink()
    (steps_dir / "latest.json").symlink_to(tmp_path / "target")
    with pytest.raises(InvalidStep, match="expected a regular file"):
        read_pointer(steps_dir)
    assert recover(steps_dir).pointer_was == "unreadable"
    assert not (steps_dir / "latest.json").is_symlink()


def test_a_pointer_without_any_step_is_moved_aside(steps_dir: Path, publish: Publish) -> None:
    publish(steps_dir, 20)
    (steps_dir / step_name(20) / "COMPLETE.json").unlink()
    assert recover(steps_dir).record is None
    assert not (steps_dir / "latest.json").exists()
    assert recover(steps_dir).pointer_was == "missing"


def test_torn_foreign_and_linked_folders_are_moved_aside_with_a_reason(
    steps_dir: Path, publish: Publish, tmp_path: Path
) -> None:
    good = publish(steps_dir, 10)
    publish(steps_dir, 20)
    (steps_dir / step_name(20) / "COMPLETE.json").write_bytes(b'{"step": 2')
    (steps_dir / step_name(2500)).mkdir()  # copied without its COMPLETE.json
    (steps_dir / step_name(2500) / "training_state.pt").write_bytes(b"a user's")
    shutil.copytree(steps_dir / step_name(10), tmp_path / step_name(30))
    (steps_dir / step_name(30)).symlink_to(tmp_path / step_name(30))
    shutil.copytree(steps_dir / step_name(10), steps_dir / step_name(40))
    (steps_dir / step_name(50)).write_bytes(b"a file")
    shutil.copytree(steps_dir / step_name(10), steps_dir / step_name(0))

    recovery = recover(steps_dir)
    assert recovery.record == good
    reasons = {skipped.name: skipped.reason for skipped in recovery.skipped}
    assert list(reasons) == [step_name(step) for step in (2500, 50, 40, 30, 20)]
    assert "COMPLETE.json: expected a regular file, found none" in reasons[step_name(2500)]
    assert "not a folder" in reasons[step_name(50)]
    assert "step differs" in reasons[step_name(40)]
    assert "links are not followed" in reasons[step_name(30)]
    assert "not a JSON document" in reasons[step_name(20)]
    assert sorted(path.name for path in steps_dir.glob("step-*")) == [step_name(0), step_name(10)]
    for name, reason in reasons.items():
        (note,) = (steps_dir / "quarantine").glob(f"{name}.*.reason.json")
        assert json.loads(note.read_text())["reason"] == reason
    (kept,) = (steps_dir / "quarantine").glob(f"{step_name(2500)}.*/training_state.pt")
    assert kept.read_bytes() == b"a user's"
    assert (tmp_path / step_name(30) / "COMPLETE.json").exists()


def test_nothing_moves_before_the_decision(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(steps_dir, 10)
    (steps_dir / step_name(2500)).mkdir()
    digested: list[bool] = []
    real = files.regular_digest

    def digest(path: Path) -> str:
        digested.append((steps_dir / step_name(2500)).exists())
        return real(path)

    monkeypatch.setattr(files, "regular_digest", digest)
    recover(steps_dir)
    assert digested
    assert all(digested)
    assert not (steps_dir / step_name(2500)).exists()


def test_those_who_only_look_change_nothing(steps_dir: Path, publish: Publish) -> None:
    publish(steps_dir, 10)
    (steps_dir / step_name(2500)).mkdir()
    (steps_dir / "latest.json").write_bytes(b"garbage")
    (steps_dir / ".work-00001-x").mkdir()
    begin_attempt(steps_dir)
    before = tree(steps_dir)
    assert find_newest(steps_dir).record == list_steps(steps_dir)[0]
    assert tree(steps_dir) == before


def test_content_is_read_no_further_than_the_newest_valid_step(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20, 30):
        publish(steps_dir, step)
    (steps_dir / step_name(30) / "training_state.pt").write_bytes(b"STATE of 30")
    digested: list[str] = []
    real = files.regular_digest

    def digest(path: Path) -> str:
        digested.append(path.parent.name)
        return real(path)

    monkeypatch.setattr(files, "regular_digest", digest)
    recovery = recover(steps_dir)
    assert recovery.record is not None
    assert recovery.record.step == 20
    assert set(digested) == {step_name(30), step_name(20)}
    (skipped,) = recovery.skipped
    assert "sha256 differs" in skipped.reason


def test_another_runs_steps_are_passed_over_and_stay(
    steps_dir: Path, publish: Publish, contract: dict[str, Any]
) -> None:
    ours = publish(steps_dir, 10)
    publish(steps_dir, 20, contract={"seed": 7})
    publish(steps_dir, 30, world=4)
    recovery = recover(steps_dir, contract=contract, world=2)
    assert recovery.record == ours
    assert [skipped.invalid for skipped in recovery.skipped] == [False, False]
    assert "world differs" in recovery.skipped[0].reason
    assert "contract differs" in recovery.skipped[1].reason
    assert [record.step for record in list_steps(steps_dir)] == [10, 20, 30]
    unasked = recover(steps_dir).record
    assert unasked is not None
    assert unasked.step == 30


def test_a_step_that_cannot_be_read_now_is_passed_over_and_stays(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(steps_dir, 10)
    publish(steps_dir, 20)
    real = files.open_regular

    def stale(path: Path) -> int:
        if path.name == "training_state.pt" and path.parent.name == step_name(20):
            raise OSError(errno.ESTALE, "stale")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "open_regular", stale)
        recovery = recover(steps_dir)
        assert recovery.record is not None
        assert recovery.record.step == 10
        (skipped,) = recovery.skipped
        assert not skipped.invalid
        assert "ESTALE" in skipped.reason
    again = recover(steps_dir).record
    assert again is not None
    assert again.step == 20


def test_a_run_does_not_start_anew_because_its_steps_cannot_be_read(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(steps_dir, 10)
    publish(steps_dir, 20)
    (steps_dir / step_name(20) / "COMPLETE.json").unlink()

    def away(path: Path) -> int:
        raise OSError(errno.EIO, "the server is away", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(files, "open_regular", away)
        with pytest.raises(StorageError, match=f"{step_name(20)}.*EIO"):
            recover(steps_dir)
    document = json.loads((steps_dir / step_name(10) / "COMPLETE.json").read_text())
    newer = json.dumps(document | {"schema_version": 2})
    (steps_dir / step_name(10) / "COMPLETE.json").write_text(newer)
    with pytest.raises(StepError, match="newer than this program"):
        recover(steps_dir)
    assert (steps_dir / step_name(10)).exists()


def test_work_of_older_attempts_is_removed_and_nothing_else(
    steps_dir: Path, publish: Publish, tmp_path: Path
) -> None:
    publish(steps_dir, 10)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("keep")
    for name in (".work-00001-step-00000020-host-1-0", ".work-00002-step-00000020-host-1-0"):
        (steps_dir / name).mkdir()
        (steps_dir / name / "training_state.pt").write_bytes(b"half")
    (steps_dir / ".work-00001-latest-host-1-0").write_bytes(b"half")
    (steps_dir / ".work-00001-link").symlink_to(tmp_path / "precious")
    (steps_dir / ".work-mine").mkdir()
    (steps_dir / "tmp").mkdir()
    recover(steps_dir)
    assert (steps_dir / ".work-00001-step-00000020-host-1-0").exists()  # attempt 1 may be alive
    begin_attempt(steps_dir)
    recover(steps_dir)
    assert sorted(path.name for path in steps_dir.iterdir()) == [
        ".work-00002-step-00000020-host-1-0",
        ".work-mine",
        "fence",
        "latest.json",
        step_name(10),
        "tmp",
    ]
    assert (tmp_path / "precious" / "file").read_text() == "keep"


def test_a_folder_that_cannot_be_listed_is_a_storage_error(
    steps_dir: Path, system: Callable[..., Any], tmp_path: Path
) -> None:
    stand_in, _ = system(lambda: recover(steps_dir))
    for at, name in enumerate(stand_in.log):
        if name == "listdir":
            _, result = system(lambda: recover(steps_dir), at, fail=errno.EIO)
            assert isinstance(result, StorageError)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        recover(tmp_path / "file")


def test_a_fence_that_cannot_be_read_stops_recovery(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it nobody can tell whether a step came too late."""
    publish(steps_dir, 10)
    begin_attempt(steps_dir)
    real = files.open_regular

    def unreadable(path: Path) -> int:
        if path.parent.name == "fence":
            raise OSError(errno.EIO, "bad sector")
        return real(path)

    monkeypatch.setattr(files, "open_regular", unreadable)
    with pytest.raises(StorageError, match="EIO"):
        recover(steps_dir)
    assert (steps_dir / step_name(10)).exists()
