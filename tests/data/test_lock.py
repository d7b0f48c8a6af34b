"""The lock under which data is prepared and bridged."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dlbhpc.data import lock
from dlbhpc.data.lock import LockLost, exclusive
from dlbhpc.errors import DlbhpcError


def test_it_is_there_while_it_is_held(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with exclusive(path, "trying"):
        assert json.loads(path.read_text())["what"] == "trying"
    assert list(tmp_path.iterdir()) == []


def test_it_is_given_back_when_the_work_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyError), exclusive(tmp_path / "a.lock", "failing"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_the_second_waits_for_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, order, waiting = tmp_path / "a.lock", [], threading.Event()
    poll = lock.time.sleep  # type: ignore[attr-defined]

    def told(seconds: float) -> None:
        waiting.set()
        poll(seconds)

    monkeypatch.setattr(lock.time, "sleep", told)  # type: ignore[attr-defined]

    def second() -> None:
        with exclusive(path, "second"):
            order.append("second")

    thread = threading.Thread(target=second)
    with exclusive(path, "writing the first"):
        thread.start()
        assert waiting.wait(60)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert "which is writing the first" in capsys.readouterr().out


def test_that_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    code = (
        "import os, pathlib, sys\n"
        "from dlbhpc.data.lock import exclusive\n"
        "with exclusive(pathlib.Path(sys.argv[1]), 'dying'): os._exit(1)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code, str(path)], env=environment).returncode == 1
    assert path.exists()
    with exclusive(path, "living"):
        assert json.loads(path.read_text())["what"] == "living"
    assert list(tmp_path.iterdir()) == []


def test_a_live_process_of_this_machine_keeps_it_however_long_it_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_DEAD_SECONDS", -1.0)
    path, looks, poll = tmp_path / "a.lock", threading.Semaphore(0), time.sleep

    def look(_: float) -> None:
        looks.release()
        poll(0.001)

    monkeypatch.setattr(lock.time, "sleep", look)  # type: ignore[attr-defined]

    def second() -> None:
        with exclusive(path, "second"):
            pass

    thread = threading.Thread(target=second)
    with exclusive(path, "first"):
        thread.start()
        held = [looks.acquire(timeout=60) for _ in range(5)]
        assert held == [True] * 5
        assert json.loads(path.read_text())["what"] == "first"
    thread.join()


@pytest.mark.parametrize("machine", ["another boot", None])
def test_the_number_of_a_process_says_nothing_about_another_machine_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str | None
) -> None:
    path = tmp_path / "a.lock"
    owner = {"token": "x", "host": socket.gethostname(), "machine": machine, "pid": 2**22 + 1}
    path.write_text(json.dumps({**owner, "started": "1", "what": "living elsewhere"}))
    waiting = threading.Event()

    def look(_: float) -> None:
        waiting.set()
        path.unlink(missing_ok=True)

    monkeypatch.setattr(lock.time, "sleep", look)  # type: ignore[attr-defined]
    with exclusive(path, "waiting"):
        assert waiting.is_set()


def test_one_that_nobody_on_another_host_touches_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.lock"
    path.write_text(json.dumps({"token": "x", "host": "elsewhere", "pid": 1, "started": "never"}))
    monkeypatch.setattr(lock, "_DEAD_SECONDS", 0.5)
    with exclusive(path, "living"):
        assert json.loads(path.read_text())["what"] == "living"


def test_the_owner_touches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_BEAT_SECONDS", 0.01)
    path = tmp_path / "a.lock"
    with exclusive(path, "beating"):
        os.utime(path, (0, 0))
        while path.stat().st_mtime == 0:
            pass


def test_what_is_built_appears_under_its_name_when_it_is_published(tmp_path: Path) -> None:
    target = tmp_path / "data"
    with exclusive(tmp_path / "a.lock", "building") as held:
        (held.workplace(target) / "file").write_text("new")
        assert not target.exists()
        assert held.publish(target, "outdated") is None
    assert (target / "file").read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_what_was_there_may_be_in_use_and_is_set_aside(tmp_path: Path) -> None:
    target = tmp_path / "data"
    for number in ("1", "2", "3"):
        with exclusive(tmp_path / "a.lock", "building") as held:
            (held.workplace(target) / "file").write_text(number)
            held.publish(target, "outdated")
    assert {path.name: (path / "file").read_text() for path in tmp_path.iterdir()} == {
        "data": "3",
        "data.outdated": "1",
        "data.outdated-2": "2",
    }


@pytest.mark.parametrize(("keep", "found"), [(True, ["half"]), (False, [])])
def test_what_a_former_owner_left_is_kept_where_it_is_of_use(
    tmp_path: Path, keep: bool, found: list[str]
) -> None:
    target = tmp_path / "data"
    with pytest.raises(KeyError), exclusive(tmp_path / "a.lock", "failing") as held:
        (held.workplace(target) / "half").write_text("half")
        raise KeyError
    with exclusive(tmp_path / "a.lock", "going on") as held:
        work = held.workplace(target, keep=keep)
        assert [path.name for path in work.iterdir()] == found
        assert [path for path in tmp_path.iterdir() if path.is_dir()] == [work]


def test_an_owner_that_lost_it_publishes_nothing_and_says_why(tmp_path: Path) -> None:
    path, target = tmp_path / "a.lock", tmp_path / "data"
    with pytest.raises(LockLost, match=r"took .*over"), exclusive(path, "sleeping") as held:
        (held.workplace(target) / "file").write_text("half")
        path.unlink()  # as who waits on another host does after a while
        with exclusive(path, "waking") as other:
            (other.workplace(target) / "file").write_text("whole")
            with pytest.raises(LockLost):
                held.publish(target, "outdated")
            other.publish(target, "outdated")
        # Whatever it does next fails: its folder is the other's.
        (held.workplace(target).with_name("gone") / "more").write_text("half")
    assert (target / "file").read_text() == "whole"


def test_a_symlink_to_nothing_in_the_place_is_refused_by_name(tmp_path: Path) -> None:
    target = tmp_path / "data"
    target.symlink_to(tmp_path / "unmounted")
    with (
        exclusive(tmp_path / "a.lock", "building") as held,
        pytest.raises(DlbhpcError, match=r"data is a symlink to .*unmounted, which is not there"),
    ):
        held.workplace(target)


def test_a_lock_taken_over_is_not_removed_by_its_former_owner(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with exclusive(path, "slow"):
        path.write_text(json.dumps({"token": "another", "host": "elsewhere"}))
    assert path.exists()


def test_the_owner_goes_on_touching_it_where_the_file_system_stumbles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_BEAT_SECONDS", 0.01)
    touch, beats = os.utime, threading.Semaphore(0)
    failures = iter([OSError(errno.ESTALE, "stale")])

    def stumble(path: Path) -> None:
        if error := next(failures, None):
            raise error
        touch(path)
        beats.release()

    monkeypatch.setattr(lock.os, "utime", stumble)  # type: ignore[attr-defined]
    with exclusive(tmp_path / "a.lock", "beating"):
        assert beats.acquire(timeout=60)
