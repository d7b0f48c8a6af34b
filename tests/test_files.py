"""Small record files are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbhpc.errors import DlbhpcError
from dlbhpc.files import (
    canonical,
    differing,
    digest,
    file_digest,
    fingerprint,
    read_json,
    recall,
    remember,
    remembered_digest,
    write_bytes,
    write_json,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON))
def test_the_digest_does_not_depend_on_the_order_of_keys(value: dict[str, object]) -> None:
    turned = dict(reversed(value.items()))
    assert canonical(turned) == canonical(value)
    assert digest(turned) == digest(value)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": [1, "ü"]})
    assert read_json(tmp_path / "a.json") == {"b": [1, "ü"]}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_write_that_fails_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": True})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_bytes(path, b"{}")
    assert read_json(path) == {"old": True}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("text", ["", "{", "[1]", "nul"])
def test_a_torn_record_is_a_sentence_that_names_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DlbhpcError, match=r"a\.json"):
        read_json(tmp_path / "a.json")


def test_a_missing_record_is_a_sentence_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(DlbhpcError, match=r"a\.json is missing"):
        read_json(tmp_path / "a.json")


def test_differing_names_changed_missing_and_new_keys() -> None:
    assert differing({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 0, "d": 4}) == ["b", "c", "d"]


def test_a_digest_is_remembered_until_the_file_is_another(tmp_path: Path) -> None:
    path, memory = tmp_path / "a", tmp_path / "inputs" / "a.digest.json"
    path.write_bytes(b"one")
    status = path.stat()
    first = remembered_digest(path, memory)
    assert first == file_digest(path)
    path.write_bytes(b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert remembered_digest(path, memory) == first, "same size, time and inode: not read"
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    second = remembered_digest(path, memory)
    assert second == file_digest(path) != first
    path.write_bytes(b"four")
    assert remembered_digest(path, memory) == file_digest(path)
    other = tmp_path / "b"
    other.write_bytes(b"FOUR")
    os.utime(other, ns=(0, path.stat().st_mtime_ns))
    other.replace(path)
    assert remembered_digest(path, memory) == file_digest(path)
    memory.write_text("torn")
    assert remembered_digest(path, memory) == file_digest(path)


def test_a_file_that_changes_while_it_is_read_is_not_remembered(tmp_path: Path) -> None:
    path, memory = tmp_path / "a", tmp_path / "a.digest.json"
    path.write_bytes(b"one")
    mark = fingerprint(path)
    path.write_bytes(b"three")
    remember(memory, mark, {"sha256": "of neither"})
    assert recall(memory, path) is None


def test_a_digest_that_cannot_be_kept_is_taken_each_time(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one")
    (tmp_path / "file").write_bytes(b"")
    assert remembered_digest(path, tmp_path / "file" / "a.json") == file_digest(path)
