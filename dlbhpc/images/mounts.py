"""How images can be mounted on this machine: by the kernel, by FUSE, or unpacked to a folder."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SECONDS = 30
_HELPERS = ("squashfuse_ll", "squashfuse")
_FUSE = Path("/dev/fuse")
_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")


@dataclass(frozen=True)
class Means:
    """What this machine offers: to be root, a setuid starter, a FUSE helper, user namespaces."""

    root: bool
    setuid: bool
    fuse: bool
    namespaces: bool


def mount_modes(means: Means) -> tuple[str, ...]:
    """The values of ``container_mount`` that can work, the one to prefer first."""
    modes = []
    if means.root or means.setuid:
        modes.append("kernel")
    if means.root or means.setuid or means.namespaces:
        modes.append("unpacked")
    if means.fuse and means.namespaces:
        modes.append("fuse")
    return tuple(modes)


def look(program: str) -> Means:
    """Ask this machine. Nothing is mounted."""
    folder = _starters(program)
    starter = folder / "starter-suid"
    path = os.pathsep.join([str(folder), os.environ.get("PATH", "")])
    return Means(
        root=os.geteuid() == 0,
        setuid=starter.is_file() and _is_setuid_root(starter.stat()),
        fuse=_may_use(_FUSE) and any(shutil.which(name, path=path) for name in _HELPERS),
        namespaces=_has_namespaces(),
    )


def _starters(program: str) -> Path:
    """Where the program's own helpers lie, as it says itself."""
    try:
        argv = [program, "buildcfg", "LIBEXECDIR"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return Path("/nonexistent")
    return Path(done.stdout.strip().removeprefix("LIBEXECDIR=")) / program / "bin"


def _may_use(device: Path) -> bool:
    return os.access(device, os.R_OK | os.W_OK)


def _is_setuid_root(status: os.stat_result) -> bool:
    return status.st_uid == 0 and bool(status.st_mode & stat.S_ISUID)


def _has_namespaces() -> bool:
    """Whether this user can make one: sites and distributions forbid it in several places."""
    try:
        argv = ["unshare", "--user", "--map-root-user", "true"]
        return subprocess.run(argv, capture_output=True, timeout=_SECONDS).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        pass  # no unshare here
    try:
        return int(_NAMESPACES.read_text(encoding="utf-8")) > 0
    except (OSError, ValueError):
        return False
