"""A SIF file is read without Apptainer, and a damaged one is told from a whole one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.images.sif import content_partition, read_digests

Write = Callable[..., Path]
CONTENT = b"hsqs" + bytes(range(256)) * 9000  # more than one block of the reader


def test_the_content_is_the_squashfs_partition(tmp_path: Path, write_sif: Write) -> None:
    path = write_sif(tmp_path / "a.sif", CONTENT)
    found = read_digests(path)
    assert found.content == hashlib.sha256(CONTENT).hexdigest()
    assert found.sif == hashlib.sha256(path.read_bytes()).hexdigest()
    partition = content_partition(path)
    assert path.read_bytes()[partition.offset :][: partition.size] == CONTENT


def test_two_builds_of_the_same_content_share_its_digest(tmp_path: Path, write_sif: Write) -> None:
    first = read_digests(write_sif(tmp_path / "a.sif", CONTENT, identity=b"\1" * 16, time=1))
    second = read_digests(write_sif(tmp_path / "b.sif", CONTENT, identity=b"\2" * 16, time=2))
    assert first.content == second.content
    assert first.sif != second.sif


def test_what_follows_the_partition_is_not_content(tmp_path: Path, write_sif: Write) -> None:
    path = write_sif(tmp_path / "a.sif", CONTENT)
    before = read_digests(path)
    path.write_bytes(path.read_bytes() + b"signature")
    assert read_digests(path).content == before.content


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda whole: b"", "too short"),
        (lambda whole: whole[:100], "too short"),
        (lambda whole: whole[:400], "cut short"),
        (lambda whole: whole[:-1], "cut short"),
        (lambda whole: b"ELF" + whole[3:32] + b"ELF_MAGIC\0" + whole[42:], "does not begin as"),
        (lambda whole: whole.replace(b"hsqs", b"xxxx"), "is not squashfs"),
        (lambda whole: whole.replace(b"\x04\x40\0\0\x01", b"\x04\x40\0\0\0"), "no squashfs"),
    ],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, write_sif: Write, damage: Callable[[bytes], bytes], told: str
) -> None:
    path = write_sif(tmp_path / "a.sif", CONTENT)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DlbhpcError, match=f"a.sif is damaged: .*{told}"):
        read_digests(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DlbhpcError, match=r"missing.sif cannot be read"):
        content_partition(tmp_path / "missing.sif")
