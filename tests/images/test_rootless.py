"""Who builds without being root, and fails, learns what this machine lacks for it."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from dlbhpc.images.rootless import rootless_advice

UID = 4242000  # nobody's


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "subuid", tmp_path / "subgid"
    for path in paths:
        path.write_text("somebody:100000:65536\n")
    return paths


def test_a_user_without_ids_learns_where_they_belong(files: tuple[Path, Path]) -> None:
    said = rootless_advice(UID, files)
    assert said is not None
    assert f"{UID} has none in {files[0]} and {files[1]}" in said
    assert "usermod --add-subuids" in said


def test_a_file_that_is_not_there_holds_none(tmp_path: Path, files: tuple[Path, Path]) -> None:
    files[0].write_text(f"{UID}:200000:65536\n")
    said = rootless_advice(UID, (files[0], tmp_path / "none"))
    assert said is not None
    assert f"none in {tmp_path / 'none'}:" in said


@pytest.mark.parametrize("by_name", [True, False])
def test_a_range_by_name_or_number_is_enough(files: tuple[Path, Path], by_name: bool) -> None:
    account = next(entry for entry in pwd.getpwall() if entry.pw_uid != 0)
    owner = account.pw_name if by_name else str(account.pw_uid)
    for path in files:
        path.write_text(f"other:1:1\n{owner}:200000:65536\n")
    assert rootless_advice(account.pw_uid, files) is None


def test_root_needs_none(tmp_path: Path) -> None:
    assert rootless_advice(0, (tmp_path / "none",)) is None
