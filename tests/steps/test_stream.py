from __future__ import annotations

import array
import errno
import hashlib
import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlbhpc.steps import files, stream
from dlbhpc.steps.stream import DigestingFile


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(chunks=st.lists(st.binary(max_size=40), max_size=20))
def test_digest_and_size_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: list[bytes]
) -> None:
    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    with monkeypatch.context() as patch:
        patch.setattr(stream, "_BUFFER", 16)
        with DigestingFile(path) as file:
            for chunk in chunks:
                assert file.write(chunk) == len(chunk)
    whole = b"".join(chunks)
    assert path.read_bytes() == whole
    assert file.size == len(whole)
    assert file.sha256 == hashlib.sha256(whole).hexdigest()


def test_large_writes_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(files, "write_all", lambda descriptor, view: seen.append(view.obj))
    large = bytearray(2 << 20)
    file = DigestingFile(tmp_path / "file")
    file.write(large)
    file.abandon()
    assert len(seen) == 1
    assert seen[0] is large


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, view: real(descriptor, view[:7]))
    with DigestingFile(tmp_path / "file") as file:
        file.write(bytes(range(100)))
    assert (tmp_path / "file").read_bytes() == bytes(range(100))


def test_a_write_that_takes_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda descriptor, view: 0)
    file = DigestingFile(tmp_path / "file")
    file.write(b"x")
    with pytest.raises(OSError, match="took nothing"):
        file.close()


def test_any_buffer_can_be_written(tmp_path: Path) -> None:
    numbers = array.array("d", [1.0, 2.0])
    with DigestingFile(tmp_path / "file") as file:
        assert file.write(numbers) == 16
        assert file.write(memoryview(b"")) == 0
        pickle.dump({"a": 1}, file)
        assert file.tell() == file.size
    assert (tmp_path / "file").read_bytes()[:16] == numbers.tobytes()


def test_nobody_can_write_around_the_digest(tmp_path: Path) -> None:
    with DigestingFile(tmp_path / "file") as file:
        assert not file.seekable()
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
        with pytest.raises(io.UnsupportedOperation):
            file.seek(0)
        file.write(b"x")
    with pytest.raises(ValueError, match="closed"):
        file.write(b"x")


def test_a_size_that_disagrees_with_the_disk_fails(tmp_path: Path) -> None:
    file = DigestingFile(tmp_path / "file")
    file.write(b"abc")
    (tmp_path / "file").write_bytes(b"12345")
    with pytest.raises(OSError, match="3 bytes written, 5 on disk"):
        file.close()
    assert file.sha256 is None


def test_an_existing_file_or_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        DigestingFile(tmp_path / "link")
    assert not (tmp_path / "target").exists()


def test_the_first_failure_is_kept_and_nothing_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def full(descriptor: int, view: memoryview) -> int:
        calls.append(len(view))
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", full)
    file = DigestingFile(tmp_path / "file")
    with pytest.raises(OSError, match="full"):
        file.write(bytes(1 << 20))
    file.write(bytes(1 << 20))  # as a writer does that missed the failure
    file.close()
    assert len(calls) == 1
    assert file.failure is not None
    assert file.sha256 is None


def test_an_exception_in_the_block_closes_without_a_digest(tmp_path: Path) -> None:
    file = DigestingFile(tmp_path / "file")
    with pytest.raises(KeyError), file:
        file.write(b"x")
        raise KeyError
    assert file.closed
    assert file.sha256 is None
