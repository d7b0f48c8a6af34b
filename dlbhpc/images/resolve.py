"""Making the locks (``make lock-images``): uv resolves, and one file is chosen for each package.

A maintainer's tool, not part of any command: it needs uv, packaging and Python 3.11. Packages are
not downloaded; the index's metadata says what each needs and what its files' hashes are.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlbhpc.errors import DlbhpcError
from dlbhpc.images.lock import Locked, lock_text, read_lock
from dlbhpc.images.spec import Environment, list_images, load_environment
from dlbhpc.layout import CONTAINERS

GLIBC = (2, 28)
"""The oldest glibc that an image's base may have: wheels for a newer one are not taken."""
_UV_SETTINGS = "uv.toml"
_HEADER = """Made by `make lock-images` from requirements.in; do not edit.
Python {python}, x86_64, the package index as of {index_date}; one file for each package."""


def resolve(folder: Path, constraints: Sequence[Locked] = ()) -> tuple[Locked, ...]:
    """Resolve ``folder/requirements.in`` for the image's Python and platform.

    ``constraints`` are versions that must come out. Raises DlbhpcError when there is no solution,
    when a package has no file for the platform, or when one that is built from source is not said
    to be.
    """
    environment = load_environment(folder)
    with tempfile.TemporaryDirectory() as scratch:
        # uv takes no other name for this format.
        answer = Path(scratch) / "pylock.toml"
        held = Path(scratch) / "constraints.txt"
        held.write_text("".join(f"{package.name}=={package.version}\n" for package in constraints))
        argv = [uv(), "pip", "compile", "--quiet", "--format", "pylock.toml", "--generate-hashes"]
        # Nothing is built for an answer (uv.toml says what sdists need): any interpreter will do.
        argv += ["--python-version", environment.python, "--no-python-downloads"]
        argv += ["--python-platform", "x86_64-manylinux_{}_{}".format(*GLIBC)]
        argv += ["--exclude-newer", environment.index_date, "--constraint", str(held)]
        argv += ["--config-file", str(folder.parent / _UV_SETTINGS)]
        argv += ["--output-file", str(answer), str(folder / "requirements.in")]
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode != 0:
            raise DlbhpcError(f"{folder / 'requirements.in'}: uv says\n{done.stderr.strip()}")
        packages = _read_toml(answer)["packages"]
    return choose(packages, environment)


def uv() -> str:
    """uv, beside the interpreter or on PATH."""
    beside = Path(sys.executable).parent
    found = shutil.which("uv", path=os.pathsep.join([str(beside), os.environ.get("PATH", "")]))
    if found is None:
        raise DlbhpcError("uv is not installed: pip install uv")
    return found


def choose(packages: Iterable[Mapping[str, Any]], environment: Environment) -> tuple[Locked, ...]:
    """One file of each resolved package: the wheel that pip would take, else the sdist.

    Raises DlbhpcError when what comes out as sdists differs from ``from_source``.
    """
    wanted = set(environment.from_source)
    chosen: list[Locked] = []
    for package in packages:
        wheel = _best_wheel(package.get("wheels", ()), environment.python)
        if (wheel is None) != (package["name"] in wanted):
            state = "has no wheel: name it" if wheel is None else "has a wheel: do not name it"
            raise DlbhpcError(f"{package['name']} {package['version']} {state} in from_source")
        file = wheel or package["sdist"]
        chosen.append(Locked(package["name"], package["version"], file["hashes"]["sha256"]))
    return tuple(sorted(chosen, key=lambda package: package.name))


def _best_wheel(wheels: Iterable[Mapping[str, Any]], python: str) -> Mapping[str, Any] | None:
    from packaging.tags import compatible_tags, cpython_tags
    from packaging.utils import parse_wheel_filename

    major, minor = (int(part) for part in python.split("."))
    platforms = [
        *(f"manylinux_2_{glibc}_x86_64" for glibc in range(GLIBC[1], 4, -1)),
        *("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"),
    ]
    tags = [
        *cpython_tags((major, minor), platforms=platforms),
        *compatible_tags((major, minor), f"cp{major}{minor}", platforms),
    ]
    rank = {tag: place for place, tag in enumerate(tags)}
    ranked = []
    for wheel in wheels:
        name = wheel["url"].rpartition("/")[2]
        _, _, build, wheel_tags = parse_wheel_filename(name)
        places = [rank[tag] for tag in wheel_tags if tag in rank]
        if places:
            ranked.append((min(places), [-part for part in build[:1]], name, wheel))
    return min(ranked, key=lambda entry: entry[:3])[3] if ranked else None


def _read_toml(path: Path) -> dict[str, Any]:
    # Only Python 3.11 has it, and mypy looks with the eyes of 3.10.
    tomllib = importlib.import_module("tomllib")
    data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return data


def write_lock(folder: Path) -> None:
    """Resolve anew and write ``requirements.lock``."""
    environment = load_environment(folder)
    header = _HEADER.format(python=environment.python, index_date=environment.index_date)
    path = folder / "requirements.lock"
    path.write_text(lock_text(resolve(folder), header), encoding="utf-8")
    print(f"{path}: {len(read_lock(path))} packages")


if __name__ == "__main__":
    for image in sys.argv[1:] or list_images():
        write_lock(CONTAINERS / image)
