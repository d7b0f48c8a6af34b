"""What an image is built on: a Docker image, another image file, or a fresh Debian."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.files import write_bytes
from dlbhpc.images.spec import ImageSpec

KINDS = ("docker", "localimage", "debootstrap")
_DEBIAN_PYTHON = {"bullseye": "3.9", "bookworm": "3.11", "trixie": "3.13"}
"""The Python of each Debian release."""
_LINE = re.compile(r"(?P<reference>[a-z0-9][A-Za-z0-9._:/-]*)@(?P<digest>sha256:[0-9a-f]{64})")
_DOCKER = re.compile(r"[a-z0-9][a-z0-9._:/-]*(:[A-Za-z0-9._-]+)?(@sha256:[0-9a-f]{64})?")
_SUITE = re.compile(r"[a-z]+")
_MIRROR = re.compile(r"https?://[A-Za-z0-9._:/~+-]+")


@dataclass(frozen=True)
class Base:
    """``kind`` and what it starts from: a Docker reference, a file's path, or a Debian release.

    ``mirror`` is where debootstrap gets the release from.
    """

    kind: str
    reference: str
    mirror: str | None = None

    @property
    def text(self) -> str:
        """As a user writes it."""
        return f"{self.kind}:{self.reference}" + (f"@{self.mirror}" if self.mirror else "")


def default_base(spec: ImageSpec) -> Base:
    return Base("docker", spec.environment.base)


def parse_base(text: str, spec: ImageSpec) -> Base:
    """The base that ``BASE=`` names: docker:REFERENCE, localimage:PATH or debootstrap:SUITE@MIRROR.

    Raises DlbhpcError for another form, and for a Debian release without the image's Python.
    """
    kind, _, rest = text.partition(":")
    if kind == "docker":
        reference = rest.removeprefix("//")
        if _DOCKER.fullmatch(reference):
            return Base(kind, reference)
    elif kind == "localimage":
        path = Path(rest).expanduser()
        if not path.is_file():
            raise DlbhpcError(f"BASE={text}: there is no image {path}")
        return Base(kind, str(path.resolve()))
    elif kind == "debootstrap":
        suite, _, mirror = rest.partition("@")
        if _SUITE.fullmatch(suite) and _MIRROR.fullmatch(mirror):
            _check_debian(suite, spec)
            return Base(kind, suite, mirror)
    raise DlbhpcError(
        f"BASE={text} is not a base: write docker:REFERENCE, localimage:PATH, or "
        "debootstrap:SUITE@MIRROR (MIRROR is the address of a Debian mirror)"
    )


def _check_debian(suite: str, spec: ImageSpec) -> None:
    python = _DEBIAN_PYTHON.get(suite)
    wanted = spec.environment.python
    if python != wanted:
        suites = [name for name, version in _DEBIAN_PYTHON.items() if version == wanted]
        hint = f"choose {' or '.join(suites)}" if suites else "no release of Debian has it"
        raise DlbhpcError(
            f"the image {spec.name} needs Python {wanted}, Debian {suite} has "
            f"{python or 'none that is known here'}: {hint}"
        )


def read_base_lock(path: Path) -> dict[str, str]:
    """The digests of Docker references that are required; none before the first build.

    Raises DlbhpcError for a line that is not REFERENCE@sha256:DIGEST.
    """
    if not path.exists():
        return {}
    locked = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise DlbhpcError(f"{path}, line {number}: {line!r} is not REFERENCE@sha256:DIGEST")
        locked[match["reference"]] = match["digest"]
    return locked


def write_base_lock(path: Path, locked: Mapping[str, str]) -> None:
    """Write down what each reference was the first time; it is required from then on."""
    lines = ["# The digests of the base images, written by the first build; required since."]
    lines += [f"{reference}@{digest}" for reference, digest in sorted(locked.items())]
    write_bytes(path, ("\n".join(lines) + "\n").encode())


def pinned(reference: str, digest: str) -> str:
    """A Docker reference by digest: the tag goes, since builders take no reference with both."""
    name, _, last = reference.partition("@")[0].rpartition("/")
    repository = last.partition(":")[0]
    return f"{name}/{repository}@{digest}" if name else f"{repository}@{digest}"
