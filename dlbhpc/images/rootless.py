"""Building without being root: what the builder needs of this machine then."""

from __future__ import annotations

import pwd
from pathlib import Path

SUBORDINATE_IDS = (Path("/etc/subuid"), Path("/etc/subgid"))


def rootless_advice(uid: int, files: tuple[Path, ...] = SUBORDINATE_IDS) -> str | None:
    """What a failed build of this user may lack, and what to do; None where nothing is known.

    To be said only when a build has failed: ids may also come from a directory service, and some
    bases can be built on without any.
    """
    if uid == 0:
        return None
    user = _name(uid)
    missing = [str(path) for path in files if not _lists(path, {user, str(uid)})]
    if not missing:
        return None
    return (
        f"a build that is not root's gives files to other users within a range of ids, and "
        f"{user} has none in {' and '.join(missing)}: have one added (usermod --add-subuids "
        f"100000-165535 --add-subgids 100000-165535 {user}), or build where you are root and copy "
        "the .sif with its .json into images/"
    )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _lists(path: Path, owners: set[str]) -> bool:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return any(line.partition(":")[0] in owners for line in lines)
