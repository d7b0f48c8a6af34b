"""An image is proven against its record, without reading gigabytes each time."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.images import record as module
from dlbhpc.images.record import ImageRecord, check_pin, read_record, verify, write_record
from dlbhpc.images.sif import Digests, read_digests
from dlbhpc.layout import Layout

COMMIT = "7c9b498f5b717de064d6fad7e2509c866e6cb620"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout.at(tmp_path)


@pytest.fixture
def record(layout: Layout, write_sif: Callable[..., Path]) -> ImageRecord:
    path = write_sif(layout.images / "duo-7c9b498f5b71.sif")
    digests = read_digests(path)
    made = ImageRecord(
        name="duo",
        file=path.name,
        sif_sha256=digests.sif,
        content_sha256=digests.content,
        inputs_sha256="1" * 64,
        definition_sha256="2" * 64,
        lock_sha256="3" * 64,
        repository="s-sahoo/duo",
        commit=COMMIT,
        base="docker:python",
        base_digest=None,
        builder="apptainer version 1",
        redistributable=True,
        labels={"a": "b"},
        time=1.0,
    )
    write_record(layout, made)
    return made


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Each time that a whole file was read."""
    read: list[Path] = []

    def counting(path: Path) -> Digests:
        read.append(path)
        return read_digests(path)

    monkeypatch.setattr(module, "read_digests", counting)
    return read


def flip(path: Path, offset: int) -> None:
    """Change one byte, and put the times back as they were."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_record_is_read_back(layout: Layout, record: ImageRecord) -> None:
    assert read_record(layout, "duo") == record


def test_an_image_that_was_not_built_names_the_command(layout: Layout) -> None:
    with pytest.raises(DlbhpcError, match="the image mdlm is not built: make image-mdlm"):
        read_record(layout, "mdlm")


def test_a_whole_image_is_proven_and_read_once(
    layout: Layout, record: ImageRecord, reads: list[Path]
) -> None:
    path = layout.images / record.file
    assert [verify(layout, record, afresh=False) for _ in range(3)] == [path] * 3
    assert reads == [path]


def test_a_touched_image_is_read_again(
    layout: Layout, record: ImageRecord, reads: list[Path]
) -> None:
    path = verify(layout, record, afresh=False)
    os.utime(path, ns=(1, 1))
    verify(layout, record, afresh=False)
    assert len(reads) == 2


def test_a_replaced_image_is_read_again(
    layout: Layout, record: ImageRecord, reads: list[Path], tmp_path: Path
) -> None:
    path = verify(layout, record, afresh=False)
    status, other = path.stat(), tmp_path / "other"
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)
    verify(layout, record, afresh=False)
    assert len(reads) == 2


@pytest.mark.parametrize(("offset", "what"), [(-1, "content"), (60, "file")])
def test_a_changed_byte_is_refused(
    layout: Layout, record: ImageRecord, offset: int, what: str
) -> None:
    verify(layout, record, afresh=False)
    flip(layout.images / record.file, offset)
    with pytest.raises(DlbhpcError, match=rf"not the one that was built: the sha256 of its {what}"):
        verify(layout, record, afresh=True)


def test_an_image_that_was_cut_short_is_refused_without_afresh(
    layout: Layout, record: ImageRecord
) -> None:
    path = verify(layout, record, afresh=False)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DlbhpcError, match="is damaged: it is cut short"):
        verify(layout, record, afresh=False)


def test_a_missing_file_is_named(layout: Layout, record: ImageRecord) -> None:
    (layout.images / record.file).unlink()
    with pytest.raises(DlbhpcError, match=r"duo-7c9b498f5b71.sif is missing: make image-duo"):
        verify(layout, record, afresh=False)


def test_another_commit_than_the_pin_is_refused(record: ImageRecord) -> None:
    check_pin(record, COMMIT)
    with pytest.raises(DlbhpcError, match=f"holds duo at {'0' * 40}, the pin is {COMMIT}"):
        check_pin(replace(record, commit="0" * 40), COMMIT)


def test_images_that_cannot_be_written_to_are_proven_all_the_same(
    layout: Layout, record: ImageRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, value: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "write_json", refuse)
    assert verify(layout, record, afresh=False).name == record.file
