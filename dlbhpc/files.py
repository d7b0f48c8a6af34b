"""Small record files: written whole or not at all, read with a sentence when they are broken."""

from __future__ import annotations

import hashlib
import json
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
