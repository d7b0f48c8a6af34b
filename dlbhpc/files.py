"""Small record files: written whole or not at all, read with a sentence when they are broken."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlbhpc.errors import DlbhpcError
from dlbhpc.steps.files import replace_file


def canonical(value: object) -> bytes:
    """The one JSON text of a value: what digests are taken over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def digest(value: object) -> str:
    """SHA-256 of the canonical JSON of a value, as hexadecimal digits."""
    return hashlib.sha256(canonical(value)).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, as hexadecimal digits."""
    hasher = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


def fingerprint(path: Path) -> dict[str, int]:
    """What tells that a file is still the one that was read. Raises OSError as it comes."""
    # Opened: a network file system then asks its server instead of its cache.
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}


def remember(memory: Path, mark: Mapping[str, int], content: Mapping[str, Any]) -> None:
    """Keep in ``memory`` what a file held whose fingerprint was ``mark`` before it was read."""
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_json(memory, {**mark, **content})
    except OSError:
        pass  # the folder may be read-only here; then the file is read each time


def recall(memory: Path, path: Path) -> dict[str, Any] | None:
    """What ``memory`` holds of the file ``path``; None once that is another file."""
    try:
        values = read_json(memory)
    except DlbhpcError:
        return None
    same = all(values.get(key) == value for key, value in fingerprint(path).items())
    return values if same else None


def remembered_digest(path: Path, memory: Path) -> str:
    """SHA-256 of a file that is read once, and again when ``memory`` is of another one."""
    if (known := recall(memory, path)) is not None:
        return str(known.get("sha256"))
    mark = fingerprint(path)
    sha256 = file_digest(path)
    remember(memory, mark, {"sha256": sha256})
    return sha256


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably: readers see the old one or the new one."""
    replace_file(path, data, path.with_name(f".{path.name}.{secrets.token_hex(4)}"))


def write_json(path: Path, value: object) -> None:
    """Write a record for people to read as well, atomically and durably."""
    write_bytes(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a record that must be there; raises DlbhpcError when it is not, or is torn."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DlbhpcError(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise DlbhpcError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise DlbhpcError(f"{path} must hold a JSON object")
    return value


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The keys whose values differ between two records, sorted."""
    return sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
