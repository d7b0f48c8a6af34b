"""A folder of packages for a site without a package index: complete, before a build begins."""

from __future__ import annotations

from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.files import file_digest
from dlbhpc.images.spec import ImageSpec

SUFFIXES = (".whl", ".tar.gz", ".zip")
"""What the name of a package's file ends with."""
_SHOWN = 5


def check_wheelhouse(folder: Path, spec: ImageSpec) -> None:
    """Refuse a folder that lacks a locked file, telling a missing one from a changed one."""
    if not folder.is_dir():
        raise DlbhpcError(f"the wheelhouse {folder} is not a folder")
    files, digests = _files(folder), digests_in(folder)
    wrong = []
    for package in spec.packages:
        if package.sha256 in digests:
            continue
        same = [path.name for path in files if _is_of(path.name, package.name, package.version)]
        found = f"{same[0]} has another" if same else "there is none"
        wrong.append(f"{package.name}=={package.version} ({found})")
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise DlbhpcError(
            f"the wheelhouse {folder} does not hold the files of {spec.lock}, by sha256: "
            f"{', '.join(wrong[:_SHOWN])}{more}; fill it with `python -m dlbhpc image "
            f"wheels {spec.name} {folder}`, on a machine that reaches an index"
        )


def digests_in(folder: Path) -> set[str]:
    """The SHA-256 of each package's file in a folder."""
    return {file_digest(path) for path in _files(folder)}


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.name.endswith(SUFFIXES)]


def _is_of(file: str, name: str, version: str) -> bool:
    normal = file.lower().replace("_", "-")
    return normal.startswith(f"{name}-{version}")
