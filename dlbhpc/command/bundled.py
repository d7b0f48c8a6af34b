"""The commit of the bundled upstream: the digest of the files that train."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dlbhpc.layout import PACKAGE, REFERENCE

_FOLDERS = (REFERENCE, PACKAGE / "inside", PACKAGE / "steps")
_FILES = tuple(PACKAGE / name for name in ("errors.py", "exit_status.py", "geometry.py"))
"""What the folders import; the epoch plan decides which samples are in which batch."""
_SUFFIXES = {".py", ".yaml"}


def bundled_commit() -> str:
    """``bundled-`` and a sha256 over names and contents of the code that trains."""
    tree = hashlib.sha256()
    for path in bundled_files():
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        tree.update(f"{content}  {path.relative_to(PACKAGE).as_posix()}\n".encode())
    return f"bundled-{tree.hexdigest()}"


def bundled_files() -> list[Path]:
    """The files of the package that train, sorted."""
    paths = (path for folder in _FOLDERS for path in folder.rglob("*") if path.suffix in _SUFFIXES)
    return sorted((*paths, *_FILES))
