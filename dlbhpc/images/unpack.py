"""An image unpacked to a folder: once for each node and content, where FUSE would not survive."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.files import read_json, write_json
from dlbhpc.images.exclusive import exclusive
from dlbhpc.images.program import without_settings
from dlbhpc.own_folder import own_folder

_DIGITS = 16
_LOOK_AGAIN_SECONDS = 3600
"""A folder that was whole so short a time ago is not looked through again: many tasks come."""


def unpacked(file: Path, content_sha256: str, program: str, scratch: Path) -> Path:
    """The folder that holds the image's content on this node, unpacked now if need be.

    The first task of a node unpacks, the others wait for it. The folder gets its name when it is
    whole, and is looked through again at times: nodes clear old files out of their scratch. One
    that lacks something gets another name, since a job may still use it. Raises DlbhpcError when it
    cannot be unpacked.
    """
    place = own_folder(scratch / f"dlbhpc-images-{os.getuid()}")
    target = place / content_sha256[:_DIGITS]
    # The folder is node-local, where file locks work.
    with exclusive(place / f"{target.name}.lock"):
        mark = place / f"{target.name}.json"
        if target.is_dir():
            if _is_whole(target, mark):
                return target
            target.rename(place / f"{target.name}.torn-{secrets.token_hex(4)}")
        # What a killed task left has another name, and goes.
        for leftover in place.glob(f"{target.name}.part-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        part = Path(tempfile.mkdtemp(prefix=f"{target.name}.part-", dir=place)) / "image"
        argv = [program, "build", "--sandbox", str(part), str(file)]
        environment = without_settings(os.environ)
        done = subprocess.run(argv, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            shutil.rmtree(part.parent, ignore_errors=True)
            raise DlbhpcError(
                f"the image {file} cannot be unpacked to {place} on {os.uname().nodename}: "
                f"{done.stderr.strip()[-1000:]}"
            )
        write_json(mark, _inventory(part))
        part.rename(target)
        part.parent.rmdir()
    return target


def _is_whole(folder: Path, mark: Path) -> bool:
    try:
        recorded = read_json(mark)
        if time.time() - mark.stat().st_mtime < _LOOK_AGAIN_SECONDS:
            return True
    except (DlbhpcError, OSError):
        return False
    if _inventory(folder) != recorded:
        return False
    os.utime(mark)
    return True


def _inventory(folder: Path) -> dict[str, int]:
    """How many entries a folder holds, and the bytes of its files."""
    entries = total = 0
    for parent, folders, files in os.walk(folder):
        entries += len(folders) + len(files)
        total += sum(Path(parent, name).lstat().st_size for name in files)
    return {"entries": entries, "bytes": total}
