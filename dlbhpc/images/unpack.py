"""An image unpacked to a folder: once for each node and content, where FUSE would not survive."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.images.exclusive import exclusive
from dlbhpc.own_folder import own_folder

_DIGITS = 16


def unpacked(file: Path, content_sha256: str, program: str, scratch: Path) -> Path:
    """The folder that holds the image's content on this node, unpacked now if need be.

    The first task of a node unpacks, the others wait for it. A folder of the final name is whole:
    it gets its name by a rename. Raises DlbhpcError when it cannot be unpacked.
    """
    place = own_folder(scratch / f"dlbhpc-images-{os.getuid()}")
    target = place / content_sha256[:_DIGITS]
    # The folder is node-local, where file locks work.
    with exclusive(place / f"{target.name}.lock"):
        if target.is_dir():
            return target
        # What a killed task left has another name, and goes.
        for leftover in place.glob(f"{target.name}.part-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        part = Path(tempfile.mkdtemp(prefix=f"{target.name}.part-", dir=place)) / "image"
        argv = [program, "build", "--sandbox", str(part), str(file)]
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode != 0:
            shutil.rmtree(part.parent, ignore_errors=True)
            raise DlbhpcError(
                f"the image {file} cannot be unpacked to {place} on {os.uname().nodename}: "
                f"{done.stderr.strip()[-1000:]}"
            )
        part.rename(target)
        part.parent.rmdir()
    return target
