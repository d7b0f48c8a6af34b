"""A build's own folder beside the images, and what killed builds have left of theirs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from dlbhpc.images.exclusive import exclusive

_MOUNTS = Path("/proc/self/mounts")
_LOCK = "lock"


@contextlib.contextmanager
def scratch(images: Path, name: str, say: Callable[[str], None]) -> Iterator[Path]:
    """A new folder in ``images`` for a build of ``name``, removed afterwards.

    First goes what builds on this node left that were killed: a folder whose lock nobody holds.
    """
    node = os.uname().nodename
    with contextlib.ExitStack() as stack:
        # Nobody takes a new folder for a left one before it is locked.
        with exclusive(images / f".{name}.lock"):
            for left in sorted(images.glob(f".{name}.{node}.*")):
                _remove_left(left, say)
            folder = Path(tempfile.mkdtemp(prefix=f".{name}.{node}.", dir=images))
            stack.callback(remove, folder, say)
            stack.enter_context(exclusive(folder / _LOCK))
        yield folder


def remove(folder: Path, say: Callable[[str], None]) -> None:
    """Remove a build's folder, unless something is mounted in it; says what stays, and why."""
    mounts = mounted_in(folder, _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape"))
    if mounts:
        say(f"{folder} stays, since {mounts[0]} is mounted: unmount that, then remove the folder")
        return
    # An unpacked base has folders that nobody may write to.
    for parent, folders, _ in os.walk(folder):
        for path in (Path(parent, each) for each in folders):
            with contextlib.suppress(OSError):
                if not path.is_symlink():
                    path.chmod(0o700)
    try:
        shutil.rmtree(folder)
    except OSError as error:
        say(f"{folder} stays, since it cannot be removed: {error}")


def mounted_in(folder: Path, mounts: str) -> list[str]:
    """The mount points under a folder, of the lines of /proc/self/mounts."""
    points = (line.split(" ")[1] for line in mounts.splitlines() if " " in line)
    plain = [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point) for point in points]
    return [point for point in plain if Path(point).is_relative_to(folder.resolve())]


def _remove_left(folder: Path, say: Callable[[str], None]) -> None:
    # Another user's stays.
    with (
        contextlib.suppress(PermissionError),
        exclusive(folder / _LOCK, wait=False) as nobodys,
    ):
        if nobodys:
            say(f"removing {folder}, which a killed build has left")
            remove(folder, say)
