"""A build's own folder goes, whatever ended the build, but never with what is mounted in it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dlbhpc.images.exclusive import exclusive
from dlbhpc.images.scratch import mounted_in, remove, scratch
from dlbhpc.layout import CHECKOUT

NODE = os.uname().nodename
HANGS = """#!/bin/sh
[ "$1" != --version ] || { echo "apptainer version 9.9.9"; exit; }
sleep 1000 &
echo "$$ $!" >"$FAKE_PIDS"
echo "INFO: building"
wait
"""


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_build_that_is_ended_ends_its_builder_and_leaves_nothing(
    tmp_path: Path, signum: signal.Signals, status: int
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "apptainer"
    program.write_text(HANGS)
    program.chmod(0o755)
    pids, root = tmp_path / "pids", tmp_path / "root"
    root.mkdir()
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    base = f"docker:docker.io/library/python@sha256:{'d' * 64}"
    argv = ["image", "build", "reference", "--base", base, "--root", str(root)]
    build = subprocess.Popen(
        [sys.executable, "-m", "dlbhpc", *argv],
        cwd=CHECKOUT,
        env={**os.environ, "PATH": path, "FAKE_PIDS": str(pids)},
        stdout=subprocess.PIPE,
        text=True,
        # As in a shell, also where the tests themselves run in the background.
        preexec_fn=lambda: signal.signal(signum, signal.SIG_DFL),
    )
    try:
        assert build.stdout is not None
        assert "INFO: building\n" in build.stdout
        assert list((root / "images").glob(f".reference.{NODE}.*/stage"))
        build.send_signal(signum)
        assert build.wait() == status
        started = [int(pid) for pid in pids.read_text().split()]
        assert [pid for pid in started if alive(pid)] == []
        assert {path.name for path in (root / "images").iterdir()} == {".cache", ".reference.lock"}
    finally:
        build.kill()
        build.communicate()
        for pid in map(int, pids.read_text().split() if pids.exists() else ()):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_what_a_killed_build_left_goes_and_one_that_goes_on_stays(tmp_path: Path) -> None:
    left, live, elsewhere, other = (
        tmp_path / name
        for name in (f".duo.{NODE}.1", f".duo.{NODE}.2", ".duo.another-node.3", f".flm.{NODE}.4")
    )
    for folder in (left, live, elsewhere, other):
        (folder / "closed").mkdir(parents=True)
        (folder / "closed" / "file").touch()
        (folder / "closed").chmod(0o500)
    said: list[str] = []
    with exclusive(live / "lock"), scratch(tmp_path, "duo", said.append) as work:
        (work / "closed").mkdir(mode=0o500)
        there = {path for path in tmp_path.iterdir() if path.is_dir()}
        assert there == {live, elsewhere, other, work}
        with exclusive(work / "lock", wait=False) as free:
            assert not free, "the next build takes this one for one that goes on"
    assert not work.exists()
    assert said == [f"removing {left}, which a killed build has left"]


def test_a_folder_in_which_something_is_mounted_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    mounts = tmp_path / "mounts"
    mounts.write_text(f"proc {tmp_path}/a\\040folder/proc proc rw 0 0\n")
    monkeypatch.setattr("dlbhpc.images.scratch._MOUNTS", mounts)
    said: list[str] = []
    remove(folder, said.append)
    assert folder.exists()
    assert f"{folder}/proc is mounted" in said[0]
    mounts.write_text(f"proc {tmp_path}/a\\040folder2/proc proc rw 0 0\n")
    assert mounted_in(folder, mounts.read_text()) == []
    remove(folder, said.append)
    assert not folder.exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_there_are_no_locks_nothing_is_taken_for_left_and_builds_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / f".duo.{NODE}.1").mkdir()
    with scratch(tmp_path, "duo", print) as work:
        assert work.is_dir()
    assert (tmp_path / f".duo.{NODE}.1").is_dir()
    assert not work.exists()
