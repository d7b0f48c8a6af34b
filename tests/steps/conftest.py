"""Steps to publish, and a file system that fails where a test wants it to."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.steps import EXPORT, STATE, StepRecord, begin_attempt, files, open_publication

CONTRACT = {"plan_sha256": "a" * 64, "objective": "global_token_mean_v1", "seed": 42, "world": 2}

Publish = Callable[..., StepRecord]


class Killed(BaseException):
    """The process is gone: nothing of it runs any more, its clean-up neither."""


class System:
    """Stands for ``os`` and ``shutil`` in :mod:`dlbhpc.steps.files`; counts every call.

    With ``fail`` the call number ``at`` alone raises that errno. With ``kill`` the process ends in
    the middle of it (a write is half done), and every later call ends at once.
    """

    CALLS = frozenset(
        {"close", "fsync", "fstat", "listdir", "lstat", "mkdir"}
        | {"open", "rename", "rmtree", "stat", "unlink", "write"}
    )

    def __init__(self, at: int = -1, *, fail: int = 0, kill: bool = False) -> None:
        self.at, self.fail, self.kill = at, fail, kill
        self.log: list[str] = []
        self.unsynced: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        real = getattr(shutil if name == "rmtree" else os, name)
        if name not in self.CALLS:
            return real

        def call(*args: Any, **keywords: Any) -> Any:
            number = len(self.log)
            self.log.append(name)
            if self.kill and number >= self.at >= 0:
                if name == "write" and number == self.at:
                    real(args[0], args[1][: len(args[1]) // 2])
                raise Killed
            if number == self.at and self.fail:
                if name == "close":  # reports late, but has closed
                    real(*args)
                raise OSError(self.fail, os.strerror(self.fail))
            result = real(*args, **keywords)
            if name == "open" and args[1] & os.O_CREAT:
                self.unsynced.add(os.fstat(result).st_ino)
            if name == "fsync":
                self.unsynced.discard(os.fstat(args[0]).st_ino)
            return result

        return call

    def lose_power(self, root: Path) -> None:
        """What was written and not synced is half gone, while every rename has lasted."""
        for path in root.rglob("*"):
            if path.is_file() and path.stat().st_ino in self.unsynced:
                os.truncate(path, path.stat().st_size // 2)


@pytest.fixture(autouse=True)
def quick_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of steps are published here; only test_kill.py waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a function with a failing System underneath; return (System, result or exception)."""

    def run(work: Callable[[], Any], at: int = -1, **how: Any) -> tuple[System, Any]:
        stand_in = System(at, **how)
        with monkeypatch.context() as patch:
            patch.setattr(files, "os", stand_in)
            patch.setattr(files, "shutil", stand_in)
            try:
                return stand_in, work()
            except (Exception, Killed) as error:
                return stand_in, error

    return run


@pytest.fixture
def contract() -> dict[str, Any]:
    return dict(CONTRACT)


@pytest.fixture
def publish(contract: dict[str, Any]) -> Publish:
    """Publish one step with an export; content follows from the step unless given."""

    def one(
        steps_dir: Path,
        step: int,
        attempt: int = 1,
        *,
        state: bytes | None = None,
        world: int = 2,
        contract: dict[str, Any] = contract,
    ) -> StepRecord:
        with open_publication(steps_dir, step=step, attempt=attempt) as publication:
            with publication.create(STATE) as file:
                file.write(b"state of %d" % step if state is None else state)
            with publication.create(EXPORT) as file:
                file.write(b"export of %d" % step)
            return publication.commit(contract=contract, world=world)

    return one


@pytest.fixture
def steps_dir(tmp_path: Path) -> Path:
    """A steps folder in which attempt 1 has begun."""
    folder = tmp_path / "steps"
    assert begin_attempt(folder) == 1
    return folder


@pytest.fixture(params=[errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
def fault(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number
