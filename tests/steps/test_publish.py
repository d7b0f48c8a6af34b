from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.steps import (
    StepError,
    StepRecord,
    StorageError,
    begin_attempt,
    files,
    list_steps,
    open_publication,
    read_pointer,
    read_record,
    recover,
    step_name,
)

Publish = Callable[..., StepRecord]
Rename = Callable[..., None]


def test_the_folder_is_as_the_control_rules_say(
    steps_dir: Path, publish: Publish, contract: dict[str, Any]
) -> None:
    record = publish(steps_dir, 42)
    folder = steps_dir / "step-00000042"
    document = json.loads((folder / "COMPLETE.json").read_text())
    state = (folder / "training_state.pt").read_bytes()
    export = (folder / "model_bf16.pt").read_bytes()
    assert document == {
        "schema_version": 1,
        "step": 42,
        "contract": contract,
        "world": 2,
        "state_bytes": len(state),
        "state_sha256": hashlib.sha256(state).hexdigest(),
        "export_bytes": len(export),
        "export_sha256": hashlib.sha256(export).hexdigest(),
        "attempt": 1,
        "time": record.time,
    }
    assert read_record(folder) == record
    assert json.loads((steps_dir / "latest.json").read_text()) == {
        "schema_version": 1,
        "step": 42,
        "folder": "step-00000042",
        "state_sha256": record.state_sha256,
    }
    assert sorted(path.name for path in steps_dir.iterdir()) == [
        "fence",
        "latest.json",
        "step-00000042",
    ]


def test_the_export_is_optional_and_extra_is_kept(
    steps_dir: Path, contract: dict[str, Any]
) -> None:
    with open_publication(steps_dir, step=1, attempt=1) as publication:
        with publication.create("training_state.pt") as file:
            file.write(b"state")
        record = publication.commit(contract=contract, world=1, extra={"epoch": 3})
    assert (record.export_bytes, record.export_sha256) == (None, None)
    assert recover(steps_dir).record == record
    assert record.extra == {"epoch": 3}


def test_everything_is_synced_before_the_rename_and_the_pointer_comes_last(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[int, str] = {}
    events: list[str] = []
    real_open, real_rename = os.open, os.rename

    def opened(path: Any, *args: Any) -> int:
        descriptor = real_open(path, *args)
        names[descriptor] = Path(path).name
        return descriptor

    def renamed(source: Path, target: Path) -> None:
        events.append(f"rename {target.name}")
        real_rename(source, target)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(names[descriptor]))
    publish(steps_dir, 42)
    work = next(event for event in events if event.startswith(".work-00001-step-00000042-"))
    pointer = next(event for event in events if event.startswith(".work-00001-latest-"))
    assert events == [
        "training_state.pt",
        "model_bf16.pt",
        "COMPLETE.json",
        work,
        "rename step-00000042",
        "steps",
        pointer,
        "rename latest.json",
        "steps",
    ]


def test_leaving_without_a_commit_leaves_nothing(steps_dir: Path) -> None:
    with open_publication(steps_dir, step=1, attempt=1) as publication:
        publication.create("training_state.pt").write(b"never closed")
        (work,) = steps_dir.glob(".work-00001-step-00000001-*")
        assert f"-{os.getpid()}-" in work.name
    with (
        pytest.raises(SystemExit),
        open_publication(steps_dir, step=1, attempt=1) as publication,
        publication.create("training_state.pt") as file,
    ):
        file.write(b"half")
        raise SystemExit(75)
    assert [path.name for path in steps_dir.iterdir()] == ["fence"]


def test_misuse_is_refused(steps_dir: Path) -> None:
    for step, attempt in ((0, 1), (100_000_000, 1), (True, 1), (1.0, 1), (1, 0), (1, None)):
        with pytest.raises(StepError, match="must be"):
            open_publication(steps_dir, step=step, attempt=attempt).__enter__()  # type: ignore[arg-type]
    with open_publication(steps_dir, step=1, attempt=1) as publication:
        with pytest.raises(StepError, match=r"nothing was written to training_state.pt"):
            publication.commit(contract={}, world=1)
        with pytest.raises(StepError, match=r"not '\.\./x'"):
            publication.create("../x")
        file = publication.create("training_state.pt")
        with pytest.raises(StepError, match="written once"):
            publication.create("training_state.pt")
        with pytest.raises(StepError, match="close the file"):
            publication.commit(contract={}, world=1)
        file.close()
        with pytest.raises(StepError, match="nothing was written"):
            publication.commit(contract={}, world=1)
    with open_publication(steps_dir, step=1, attempt=1) as publication:
        with publication.create("training_state.pt") as file:
            file.write(b"x")
        with pytest.raises(StepError, match=r"NaN|JSON"):
            publication.commit(contract={"seed": float("nan")}, world=1)
        with pytest.raises(StepError, match="world"):
            publication.commit(contract={}, world=0)
        publication.commit(contract={}, world=1)
        with pytest.raises(StepError, match="committed already"):
            publication.commit(contract={}, world=1)


def test_the_same_step_again_gives_the_record_that_is_there(
    steps_dir: Path, publish: Publish
) -> None:
    first = publish(steps_dir, 42)
    assert publish(steps_dir, 42, state=b"another") == first
    begin_attempt(steps_dir)
    assert publish(steps_dir, 42, 2) == first
    assert [path.name for path in steps_dir.glob("*step*")] == ["step-00000042"]


def test_a_decayed_step_of_an_older_attempt_is_replaced(steps_dir: Path, publish: Publish) -> None:
    publish(steps_dir, 42)
    (steps_dir / step_name(42) / "training_state.pt").write_bytes(b"STATE of 42")
    begin_attempt(steps_dir)
    assert publish(steps_dir, 42, 2).attempt == 2
    assert recover(steps_dir).skipped == ()


@pytest.mark.parametrize("what", ["torn", "foreign", "file", "link", "other contract"])
def test_what_cannot_stand_under_the_final_name_goes_to_quarantine(
    steps_dir: Path, publish: Publish, tmp_path: Path, what: str
) -> None:
    target = steps_dir / step_name(42)
    if what == "file":
        target.write_bytes(b"x")
    elif what == "link":
        (tmp_path / "elsewhere").mkdir()
        target.symlink_to(tmp_path / "elsewhere")
    elif what == "foreign":
        target.mkdir()
        (target / "training_state.pt").write_bytes(b"x")
    elif what == "torn":
        publish(steps_dir, 42)
        (target / "training_state.pt").write_bytes(b"x")
    else:
        publish(steps_dir, 42, contract={"seed": 1})
    record = publish(steps_dir, 42)
    assert recover(steps_dir).record == record
    assert (target / "training_state.pt").read_bytes() == b"state of 42"
    (reason,) = (steps_dir / "quarantine").glob("*.reason.json")
    document = json.loads(reason.read_text())
    assert document["name"] == step_name(42)
    assert str(target) in document["reason"]
    assert os.path.lexists(reason.with_name(reason.name.replace(".reason.json", "")))
    if what == "link":
        assert (tmp_path / "elsewhere").is_dir()


def patch_rename(
    monkeypatch: pytest.MonkeyPatch, prefix: str, instead: Callable[[Rename, Any, Any], None]
) -> None:
    real = os.rename

    def rename(source: Any, target: Any) -> None:
        if Path(target).name.startswith(prefix):
            instead(real, source, target)
        else:
            real(source, target)

    monkeypatch.setattr(os, "rename", rename)


@pytest.mark.parametrize("name", ["step-", "latest.json"])
def test_a_rename_that_took_place_and_reports_failure_is_a_success(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def lose_the_answer(real: Rename, source: Any, target: Any) -> None:
        real(source, target)
        raise OSError(errno.ENOENT, "lost", str(source))

    patch_rename(monkeypatch, name, lose_the_answer)
    record = publish(steps_dir, 42)
    assert recover(steps_dir).record == record
    assert recover(steps_dir).pointer_was == "current"


@pytest.mark.parametrize("name", ["step-", "latest.json"])
def test_a_rename_that_reports_success_and_did_nothing_is_a_failure(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    publish(steps_dir, 10)
    with monkeypatch.context() as patch:
        patch_rename(patch, name, lambda real, source, target: None)
        with pytest.raises(StorageError):
            publish(steps_dir, 42)
    assert not list(steps_dir.glob(".work-*"))
    assert publish(steps_dir, 42).step == 42


def test_a_rename_to_another_device_is_refused_without_a_copy(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(real: Rename, source: Any, target: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    with monkeypatch.context() as patch:
        patch_rename(patch, "step-", refuse)
        with pytest.raises(StorageError, match=r"EXDEV.*never copied"):
            publish(steps_dir, 42)
    assert [path.name for path in steps_dir.iterdir()] == ["fence"]


def test_a_work_folder_on_another_device_is_refused(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "device", lambda path: hash(path.name))
    with pytest.raises(StorageError, match="EXDEV"):
        publish(steps_dir, 42)
    assert [path.name for path in steps_dir.iterdir()] == ["fence"]


def test_two_publishers_of_one_step_agree_on_one_record(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    firsts: list[StepRecord] = []

    with monkeypatch.context() as patch:
        real = os.rename
        taken = False

        def rename(source: Any, target: Any) -> None:
            nonlocal taken
            if Path(target).name == step_name(42) and not taken:
                taken = True
                firsts.append(publish(steps_dir, 42, state=b"first"))
            real(source, target)

        patch.setattr(os, "rename", rename)
        record = publish(steps_dir, 42, state=b"second")
    assert [record] == firsts
    assert recover(steps_dir).record == record
    assert not list(steps_dir.glob(".work-*"))


def test_a_failure_that_the_writer_hides_is_a_storage_error(
    steps_dir: Path, contract: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch's archive writer does: it reports a position, not the disk that is full."""

    def full(descriptor: int, view: memoryview) -> int:
        raise OSError(errno.ENOSPC, "full")

    def save(publication: Any, hide: bool) -> None:
        with publication.create("training_state.pt") as file:
            try:
                file.write(bytes(2 << 20))
            except OSError as error:
                if not hide:
                    raise RuntimeError("unexpected pos 64 vs 0") from error
        publication.commit(contract=contract, world=2)

    for hide in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with (
                pytest.raises(StorageError, match="ENOSPC") as caught,
                open_publication(steps_dir, step=1, attempt=1) as publication,
            ):
                save(publication, hide)
        assert isinstance(caught.value.__cause__, OSError)
        assert [path.name for path in steps_dir.iterdir()] == ["fence"]


def test_an_error_of_the_callers_own_passes_unchanged(steps_dir: Path) -> None:
    with (
        pytest.raises(FileNotFoundError),
        open_publication(steps_dir, step=1, attempt=1) as publication,
        publication.create("training_state.pt"),
    ):
        (steps_dir / "nowhere").read_bytes()


def test_a_full_disk_leaves_the_old_step_whole(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = publish(steps_dir, 10)
    real, written = os.write, 0

    def full_at_80_percent(descriptor: int, view: memoryview) -> int:
        nonlocal written
        if written + len(view) > 80:
            if written == 80:
                raise OSError(errno.EDQUOT, "quota")
            view = view[: 80 - written]
        written += len(view)
        return real(descriptor, view)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_at_80_percent)
        with pytest.raises(StorageError, match="quota is used up"):
            publish(steps_dir, 20, state=bytes(100))
    assert recover(steps_dir).record == old
    assert not list(steps_dir.glob(".work-*"))


def test_a_missing_or_unwritable_folder_is_an_error_at_once(
    tmp_path: Path, publish: Publish, steps_dir: Path, system: Callable[..., Any]
) -> None:
    with pytest.raises(StorageError, match="ENOENT"):
        publish(tmp_path / "nowhere", 1)
    stand_in, _ = system(lambda: publish(steps_dir, 1))
    at = stand_in.log.index("mkdir")
    _, result = system(lambda: publish(steps_dir, 2), at, fail=errno.EACCES)
    assert isinstance(result, StorageError)
    assert "Give this user the right" in str(result)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_made_read_only_is_an_error_at_once(steps_dir: Path, publish: Publish) -> None:
    old = publish(steps_dir, 10)
    steps_dir.chmod(0o555)
    try:
        with pytest.raises(StorageError, match="EACCES"):
            publish(steps_dir, 20)
        assert list_steps(steps_dir) == (old,)
    finally:
        steps_dir.chmod(0o755)


def test_a_folder_that_cannot_be_synced_by_its_nature_is_no_failure(
    steps_dir: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):  # noqa: PTH112
            raise OSError(errno.EINVAL, "not for folders")

    monkeypatch.setattr(os, "fsync", sync)
    assert publish(steps_dir, 42).step == 42


def test_a_folder_or_link_in_the_pointers_place_is_replaced(
    steps_dir: Path, publish: Publish, tmp_path: Path
) -> None:
    (steps_dir / "latest.json").mkdir()
    publish(steps_dir, 10)
    assert read_pointer(steps_dir) is not None
    (steps_dir / "latest.json").unlink()
    (tmp_path / "target").write_text("keep")
    (steps_dir / "latest.json").symlink_to(tmp_path / "target")
    publish(steps_dir, 20)
    pointer = read_pointer(steps_dir)
    assert pointer is not None
    assert pointer.step == 20
    assert (tmp_path / "target").read_text() == "keep"
