"""A folder of this user's alone, on a node's own disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dlbhpc.errors import DlbhpcError


def own_folder(folder: Path) -> Path:
    """Make the folder, for this user only, where it is missing; its parent must be there.

    Raises DlbhpcError when it cannot be made, or somebody else made it first: the place above may
    be open to everybody.
    """
    node = os.uname().nodename
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise DlbhpcError(
            f"the scratch folder {folder} cannot be made on {node}: {error.strerror}; "
            "correct scratch in the cluster profile"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise DlbhpcError(f"{folder} on {node} is not this user's folder: remove it")
    return folder
