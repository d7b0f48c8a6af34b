"""``requirements.lock``: every package of an image, by exact version and by the hash of one file.

One hash for each package: with several, the file that gets installed would depend on which pip
looks, and on what the index still has on that day.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dlbhpc.errors import DlbhpcError

_LINE = re.compile(
    r"(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)==(?P<version>[A-Za-z0-9.!+]+) "
    r"--hash=sha256:(?P<sha256>[0-9a-f]{64})"
)


@dataclass(frozen=True)
class Locked:
    """One package: its normalised name, its version, and the SHA-256 of its wheel or sdist."""

    name: str
    version: str
    sha256: str

    @property
    def line(self) -> str:
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


def read_lock(path: Path) -> tuple[Locked, ...]:
    """The packages of a lock, sorted by name.

    Raises DlbhpcError for a line that is anything but a name, ``==``, a version and one hash: a
    range, an address, an option or a requirement without a hash could install what nobody has seen.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DlbhpcError(f"{path} cannot be read: {error.strerror}") from error
    packages: dict[str, Locked] = {}
    for number, line in enumerate(lines, start=1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise DlbhpcError(
                f"{path}, line {number}: {line!r} is not NAME==VERSION --hash=sha256:DIGEST: an "
                "image installs nothing without an exact version and a hash"
            )
        package = Locked(**match.groupdict())
        if package.name in packages:
            raise DlbhpcError(f"{path}, line {number}: {package.name} stands there twice")
        packages[package.name] = package
    if not packages:
        raise DlbhpcError(f"{path} holds no package")
    return tuple(packages[name] for name in sorted(packages))


def lock_text(packages: tuple[Locked, ...], header: str) -> str:
    """The text of a lock; :func:`read_lock` reads back the same packages."""
    lines = [f"# {line}" for line in header.splitlines()]
    lines += [package.line for package in sorted(packages, key=lambda package: package.name)]
    return "\n".join(lines) + "\n"
