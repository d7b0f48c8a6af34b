"""Filling a wheelhouse: each locked file from a package index, by its hash; nothing is built.

pip download would run the setup.py of what has no wheel, and some of those need torch and CUDA.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.images.lock import Locked
from dlbhpc.images.spec import ImageSpec
from dlbhpc.images.wheelhouse import SUFFIXES, digests_in

INDEX = "https://pypi.org/simple"
"""The package index that pip asks by itself."""
_JSON = "application/vnd.pypi.simple.v1+json"
_TIMEOUT_SECONDS = 60
_BLOCK = 1 << 20


@dataclass(frozen=True)
class _File:
    """A file on the index: its name there, and its address."""

    name: str
    url: str


def fill_wheelhouse(
    folder: Path, spec: ImageSpec, say: Callable[[str], None], index: str = INDEX
) -> None:
    """Download what ``folder`` lacks of the lock's files; those that are there stay.

    ``index`` is the address of a simple index that answers in JSON (PEP 691). Raises DlbhpcError
    when a file is not on it, does not come, or has another hash; then that file is not left behind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    there = digests_in(folder)
    missing = [package for package in spec.packages if package.sha256 not in there]
    for number, package in enumerate(missing, start=1):
        try:
            file = _find(index, package)
            say(f"{number}/{len(missing)} {file.name}")
            _download(file, package, folder)
        except (OSError, LookupError, TypeError, ValueError, http.client.HTTPException) as error:
            raise DlbhpcError(
                f"{package.name}=={package.version} cannot be fetched from {index} ({error}): run "
                "the same again, what is there stays; or name another --index, which answers in "
                "JSON (PEP 691)"
            ) from error


def _find(index: str, package: Locked) -> _File:
    page, answer = _open(f"{index.rstrip('/')}/{package.name}/")
    with answer:
        files = json.loads(answer.read())["files"]
    for file in files:
        name = str(file["filename"])
        if file["hashes"].get("sha256") != package.sha256:
            continue
        if "/" in name or not name.endswith(SUFFIXES):
            raise DlbhpcError(f"{page} names a file {name!r}, which is no package")
        return _File(name, urllib.parse.urljoin(page, str(file["url"])))
    raise DlbhpcError(
        f"{page} has no file of {package.name}=={package.version} with the sha256 "
        f"{package.sha256}, which the lock requires: name another --index"
    )


def _download(file: _File, package: Locked, folder: Path) -> None:
    part = folder / f".{file.name}.part"
    found = hashlib.sha256()
    try:
        with _open(file.url)[1] as answer, part.open("wb") as target:
            while block := answer.read(_BLOCK):
                found.update(block)
                target.write(block)
        if found.hexdigest() != package.sha256:
            raise DlbhpcError(
                f"{file.url} has the sha256 {found.hexdigest()}, the lock requires "
                f"{package.sha256}: it is not what was locked, or was cut short"
            )
        part.replace(folder / file.name)
    finally:
        part.unlink(missing_ok=True)


def _open(url: str) -> tuple[str, http.client.HTTPResponse]:
    """Where the answer comes from in the end, and the answer."""
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{url} is no http address")
    request = urllib.request.Request(url, headers={"Accept": f"{_JSON}, */*;q=0.1"})
    answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    return answer.geturl(), answer
