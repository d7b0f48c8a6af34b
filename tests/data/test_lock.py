"""The lock under which data is prepared and bridged."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dlbhpc.data import lock
from dlbhpc.data.lock import exclusive


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
