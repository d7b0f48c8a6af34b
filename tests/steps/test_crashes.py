"""Kill or fail each single system call: the old step or the new one is there, whole."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.steps import (
    Recovery,
    StepRecord,
    StorageError,
    begin_attempt,
    list_steps,
    newest_attempt,
    read_pointer,
    recover,
    retain,
    step_name,
)

Run = Callable[..., Any]
Publish = Callable[..., StepRecord]


def calls_of(system: Run, work: Callable[[], Any]) -> list[str]:
    stand_in, result = system(work)
    assert not isinstance(result, BaseException), result
    log: list[str] = stand_in.log
    return log


def recovered(steps_dir: Path, contract: dict[str, Any]) -> Recovery:
    """What the next attempt finds, having checked that it leaves the folder tidy."""
    attempt = begin_attempt(steps_dir)
    recovery = recover(steps_dir, contract=contract, world=2)
    pointer = read_pointer(steps_dir)
    assert (pointer.step if pointer else None) == (recovery.record and recovery.record.step)
    leftovers = [path.name for path in steps_dir.iterdir() if path.name.startswith(".work-")]
    assert leftovers == []
    assert newest_attempt(steps_dir) == attempt
    return recovery


def test_publish_killed_at_any_call(
    tmp_path: Path, system: Run, publish: Publish, contract: dict[str, Any]
) -> None:
    def prepare(name: str) -> Path:
        folder = tmp_path / name
        publish(folder, 10, begin_attempt(folder))
        return folder

    model = prepare("model")
    calls = calls_of(system, lambda: publish(model, 20))
    renamed = calls.index("rename")
    for at in range(len(calls) + 1):
        folder = prepare(str(at))
        stand_in, _ = system(lambda folder=folder: publish(folder, 20), at, kill=True)
        stand_in.lose_power(folder)
        recovery = recovered(folder, contract)
        assert recovery.record is not None
        assert recovery.record.step == (10 if at <= renamed else 20), f"{at}: {calls[at:][:1]}"
        assert recovery.skipped == ()
        # The successor is not hindered by what is left.
        assert publish(folder, 20, 2).step == 20
        assert recovered(folder, contract).record == list_steps(folder)[-1]


def test_publish_failing_at_any_call(
    tmp_path: Path, system: Run, publish: Publish, contract: dict[str, Any], fault: int
) -> None:
    def prepare(name: str) -> Path:
        folder = tmp_path / name
        publish(folder, 10, begin_attempt(folder))
        return folder

    model = prepare("model")
    calls = calls_of(system, lambda: publish(model, 20))
    refused = 0
    for at in range(len(calls)):
        folder = prepare(str(at))
        _, result = system(lambda folder=folder: publish(folder, 20), at, fail=fault)
        if isinstance(result, StepRecord):
            assert recover(folder).record == result
        else:
            refused += 1
            assert isinstance(result, StorageError), f"{at}: {calls[at]}: {result!r}"
            assert isinstance(result.__cause__, OSError)
            assert result.__cause__.errno == fault
            assert errno.errorcode[fault] in str(result)
            assert [path.name for path in folder.iterdir() if path.name[0] == "."] == []
            assert list_steps(folder)[0].step == 10
        # One failure is not remembered: the same attempt tries again and gets there.
        assert publish(folder, 20).step == 20
        assert [record.step for record in list_steps(folder)] == [10, 20]
        assert recover(folder, contract=contract, world=2).pointer_was == "current"
    assert refused > len(calls) // 2


def test_making_room_killed_at_any_call(
    tmp_path: Path, system: Run, publish: Publish, contract: dict[str, Any]
) -> None:
    """A torn folder under the final name goes to quarantine first."""

    def prepare(name: str) -> Path:
        folder = tmp_path / name
        publish(folder, 10, begin_attempt(folder))
        torn = folder / step_name(20)
        torn.mkdir()
        (torn / "training_state.pt").write_bytes(b"half")
        return folder

    model = prepare("model")
    calls = calls_of(system, lambda: publish(model, 20))
    for at in range(len(calls) + 1):
        folder = prepare(str(at))
        stand_in, _ = system(lambda folder=folder: publish(folder, 20), at, kill=True)
        stand_in.lose_power(folder)
        recovery = recovered(folder, contract)
        assert recovery.record is not None
        assert recovery.record.step in (10, 20)
        (kept,) = (folder / "quarantine").glob("step-*/training_state.pt")
        assert kept.read_bytes() == b"half"
        assert kept.parent.with_name(f"{kept.parent.name}.reason.json").exists()


def test_recovery_killed_at_any_call(
    tmp_path: Path, system: Run, publish: Publish, contract: dict[str, Any]
) -> None:
    def prepare(name: str) -> Path:
        folder = tmp_path / name
        publish(folder, 10, begin_attempt(folder))
        publish(folder, 20)
        (folder / step_name(20) / "training_state.pt").write_bytes(b"")
        (folder / "latest.json").write_bytes(b"garbage")
        (folder / ".work-00001-step-00000030-host-1-00000000").mkdir()
        begin_attempt(folder)
        return folder

    model = prepare("model")
    calls = calls_of(system, lambda: recover(model, contract=contract, world=2))
    for at in range(len(calls) + 1):
        folder = prepare(str(at))
        stand_in, _ = system(lambda folder=folder: recover(folder), at, kill=True)
        stand_in.lose_power(folder)
        recovery = recovered(folder, contract)
        assert recovery.record is not None
        assert recovery.record.step == 10


def test_beginning_killed_at_any_call(
    tmp_path: Path, system: Run, publish: Publish, contract: dict[str, Any]
) -> None:
    def prepare(name: str) -> Path:
        folder = tmp_path / name
        publish(folder, 10, begin_attempt(folder))
        return folder

    model = prepare("model")
    calls = calls_of(system, lambda: begin_attempt(model))
    for at in range(len(calls) + 1):
        folder = prepare(str(at))
        stand_in, _ = system(lambda folder=folder: begin_attempt(folder), at, kill=True)
        stand_in.lose_power(folder)
        recovery = recovered(folder, contract)
        assert recovery.record is not None
        assert recovery.record.step == 10
        assert publish(folder, 20, newest_attempt(folder)).step == 20


@pytest.mark.parametrize("how", [{"kill": True}, {"fail": errno.EIO}], ids=["killed", "failing"])
def test_retention_stopped_at_any_call(
    tmp_path: Path, system: Run, publish: Publish, contract: dict[str, Any], how: dict[str, Any]
) -> None:
    def prepare(name: str) -> Path:
        folder = tmp_path / name
        begin_attempt(folder)
        for step in (10, 20, 30, 40):
            publish(folder, step)
        return folder

    model = prepare("model")
    calls = calls_of(system, lambda: retain(model))
    assert "rmtree" in calls
    for at in range(len(calls) + 1):
        folder = prepare(str(at))
        system(lambda folder=folder: retain(folder), at, **how)
        steps = [record.step for record in list_steps(folder)]
        assert steps[-2:] == [30, 40]
        assert len(list(folder.glob("step-*"))) == len(steps)
        recovery = recovered(folder, contract)
        assert recovery.record is not None
        assert recovery.record.step == 40
        assert recovery.skipped == ()
