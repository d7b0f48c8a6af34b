"""A folder of packages is compared with the lock by hash before it is built from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.files import file_digest
from dlbhpc.images.lock import Locked
from dlbhpc.images.spec import ImageSpec
from dlbhpc.images.wheelhouse import check_wheelhouse


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("torch-2.5.1+cpu-cp311.whl", "Some_Thing-1.0.tar.gz"):
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.fixture
def spec(reference: ImageSpec, folder: Path) -> ImageSpec:
    torch, thing = sorted(folder.iterdir(), key=lambda path: path.name.lower(), reverse=True)
    packages = (
        Locked("torch", "2.5.1+cpu", file_digest(torch)),
        Locked("some-thing", "1.0", file_digest(thing)),
    )
    return replace(reference, packages=packages)


def test_a_complete_folder_passes(spec: ImageSpec, folder: Path) -> None:
    check_wheelhouse(folder, spec)


def test_a_changed_file_is_told_from_a_missing_one(spec: ImageSpec, folder: Path) -> None:
    (folder / "torch-2.5.1+cpu-cp311.whl").write_text("evil")
    (folder / "Some_Thing-1.0.tar.gz").unlink()
    with pytest.raises(DlbhpcError) as told:
        check_wheelhouse(folder, spec)
    assert "torch==2.5.1+cpu (torch-2.5.1+cpu-cp311.whl has another)" in str(told.value)
    assert "some-thing==1.0 (there is none)" in str(told.value)


def test_a_missing_folder_is_told(spec: ImageSpec, folder: Path) -> None:
    with pytest.raises(DlbhpcError, match="is not a folder"):
        check_wheelhouse(folder / "none", spec)
