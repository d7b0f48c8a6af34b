"""An image unpacked once for each node, with a stand-in that unpacks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.images.unpack import unpacked

CONTENT = "c" * 64
Unpack = Callable[[], Path]


@pytest.fixture
def unpack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Unpack:
    """Unpacks with a program that makes two files, and writes down each call."""
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\nenv >{tmp_path}/env\n'
        'mkdir -p "$3/lib" && echo one >"$3/lib/one.py" && echo two >"$3/two"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("APPTAINER_BIND", "/home/somebody:/opt/venv")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return lambda: unpacked(tmp_path / "image.sif", CONTENT, str(program), scratch)


def calls(tmp_path: Path) -> int:
    return len((tmp_path / "calls").read_text().splitlines())


def long_ago(folder: Path) -> None:
    mark = folder.with_name(f"{folder.name}.json")
    os.utime(mark, (1, 1))


def test_it_is_unpacked_once_without_the_users_settings(unpack: Unpack, tmp_path: Path) -> None:
    folder = unpack()
    assert (folder / "lib" / "one.py").read_text() == "one\n"
    assert unpack() == folder
    long_ago(folder)
    assert unpack() == folder
    assert calls(tmp_path) == 1
    assert "APPTAINER_BIND" not in (tmp_path / "env").read_text()


@pytest.mark.parametrize("lost", ["lib/one.py", "mark"])
def test_what_a_node_has_cleared_is_unpacked_again(
    unpack: Unpack, tmp_path: Path, lost: str
) -> None:
    folder = unpack()
    long_ago(folder)
    mark = folder.with_name(f"{folder.name}.json")
    (mark if lost == "mark" else folder / lost).unlink()
    assert unpack() == folder
    assert (folder / "lib" / "one.py").is_file()
    assert calls(tmp_path) == 2
    torn = list(folder.parent.glob(f"{folder.name}.torn-*"))
    assert len(torn) == 1, "a job that still uses it does not lose the rest"


def test_a_failure_leaves_nothing_and_is_said(tmp_path: Path) -> None:
    program = tmp_path / "apptainer"
    program.write_text("#!/bin/sh\necho 'no space left' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(DlbhpcError, match=r"cannot be unpacked to .*no space left"):
        unpacked(tmp_path / "image.sif", CONTENT, str(program), tmp_path)
    (place,) = tmp_path.glob("dlbhpc-images-*")
    assert [path.name for path in place.iterdir()] == [f"{CONTENT[:16]}.lock"]
