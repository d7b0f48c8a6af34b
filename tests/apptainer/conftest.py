"""A real Apptainer for tests: the bundled upstream's image, built once from what the user names.

``BASE`` and ``WHEELHOUSE`` of ``make test-apptainer`` say what it is built from. The image's lock
is made of the wheelhouse here, so that a torch without CUDA will do; that the committed locks
resolve is another test's business.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.files import file_digest
from dlbhpc.images.base import Base, parse_base
from dlbhpc.images.build import Built, build
from dlbhpc.images.lock import Locked, lock_text
from dlbhpc.images.program import find_program
from dlbhpc.images.record import read_record
from dlbhpc.images.spec import ImageSpec, load_image
from dlbhpc.layout import CHECKOUT, CONTAINERS, Layout

BASE, WHEELHOUSE = "DLBHPC_TEST_BASE", "DLBHPC_TEST_WHEELHOUSE"
KEPT = CHECKOUT / ".cache" / "test-image"
"""The project root in which the image is kept, until ``make clean``."""


@pytest.fixture(scope="session")
def apptainer() -> str:
    """Apptainer or Singularity on PATH."""
    try:
        return find_program()
    except DlbhpcError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def wheelhouse() -> Path:
    return Path(_named(WHEELHOUSE)).resolve()


@pytest.fixture(scope="session")
def spec(apptainer: str, wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> ImageSpec:
    """The bundled upstream's image, of the packages that the wheelhouse holds."""
    containers = Path(shutil.copytree(CONTAINERS, tmp_path_factory.mktemp("own") / "containers"))
    lock = containers / "reference" / "requirements.lock"
    packages = (_locked(path) for path in sorted(wheelhouse.iterdir()))
    lock.write_text(lock_text(tuple(packages), "what the wheelhouse holds"), encoding="utf-8")
    return load_image("reference", containers)


@pytest.fixture(scope="session")
def base(spec: ImageSpec) -> Base:
    return parse_base(_named(BASE), spec)


@pytest.fixture(scope="session")
def build_in(spec: ImageSpec, base: Base, wheelhouse: Path) -> Callable[[Path], Built]:
    """Build the image in a project root."""

    def run(root: Path) -> Built:
        root.mkdir(parents=True, exist_ok=True)
        return build(spec, base, Layout.at(root), wheelhouse, print)

    return run


@pytest.fixture(scope="session")
def image(build_in: Callable[[Path], Built]) -> Path:
    """The image, built once for all pytest workers and kept for the next time. It is only read."""
    KEPT.mkdir(parents=True, exist_ok=True)
    with KEPT.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build_in(KEPT).path


@pytest.fixture(scope="session")
def put_image(image: Path) -> Callable[[Path], Path]:
    """Give a project root the image, as if it was built there; a copy of the file."""

    def put(root: Path) -> Path:
        layout = Layout.at(root)
        layout.images.mkdir(parents=True)
        record = read_record(Layout.at(image.parents[1]), "reference")
        shutil.copy(image.parent / "reference.json", layout.images)
        shutil.copyfile(image, layout.images / record.file)
        return layout.images / record.file

    return put


def _named(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set: see `make test-apptainer` in docs/images.md")
    return value


def _locked(path: Path) -> Locked:
    from packaging.utils import parse_sdist_filename, parse_wheel_filename

    parse = parse_wheel_filename if path.suffix == ".whl" else parse_sdist_filename
    name, version = parse(path.name)[:2]
    return Locked(name, str(version), file_digest(path))
