"""Is the upstream's source the pinned one: HEAD is the commit, and nothing in the tree differs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from dlbhpc.errors import DlbhpcError

_BYTECODE = (".pyc", ".pyo")


def verify_checkout(folder: Path, commit: str, repository: str) -> None:
    """Refuse a checkout that is missing, at another commit, or changed; touches no network.

    Untracked Python bytecode does not count as a change. Raises DlbhpcError.
    """
    if not (folder / ".git").exists():
        raise DlbhpcError(
            f"the source checkout {folder} is missing: get it with\n"
            f"  git clone https://github.com/{repository} {folder}\n"
            f"  git -C {folder} checkout {commit}"
        )
    head = git(folder, "rev-parse", "HEAD").strip()
    if head != commit:
        raise DlbhpcError(
            f"the source checkout {folder} is at {head}, the recipe is pinned to {commit}: "
            f"git -C {folder} checkout {commit}"
        )
    # Ignored files are listed as well: what .gitignore hides is imported all the same.
    status = git(
        folder, "status", "--porcelain", "-z", "--untracked-files=all", "--ignored=traditional"
    )
    changed = [entry[3:] for entry in status.split("\0") if entry and not _is_bytecode(entry)]
    if changed:
        raise DlbhpcError(
            f"the source checkout {folder} is not clean ({', '.join(changed[:5])}): "
            f"remove or stash the changes, so that {commit[:12]} is what runs"
        )


def head_commit(folder: Path) -> str:
    """The commit that a checkout is at. Raises DlbhpcError."""
    return git(folder, "rev-parse", "HEAD").strip()


def committed_texts(folder: Path, below: str, suffix: str) -> dict[str, str]:
    """The committed text files under ``below`` whose names end with ``suffix``, by their path.

    They are read from HEAD, whatever the work tree holds. Raises DlbhpcError.
    """
    listed = git(folder, "ls-tree", "-r", "-z", "--name-only", "HEAD", "--", below).split("\0")
    return {path: git(folder, "show", f"HEAD:{path}") for path in listed if path.endswith(suffix)}


def _is_bytecode(entry: str) -> bool:
    kind, path = entry[:2], entry[3:]
    if kind not in ("??", "!!"):
        return False
    return path.endswith(_BYTECODE) or "__pycache__" in Path(path).parts


def git(folder: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
    """What git prints for a command in ``folder``; raises DlbhpcError with its words."""
    # A GIT_DIR of the caller's would silently answer for another repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment |= variables or {}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
        )
    except FileNotFoundError as error:
        raise DlbhpcError("git is not installed: it verifies the upstream's source") from error
    except subprocess.CalledProcessError as error:
        raise DlbhpcError(
            f"git cannot read the source checkout {folder}: {error.stderr.strip()}"
        ) from error
    return done.stdout
