"""What one image is made of: ``containers/NAME/``, and the pin that stands in ``dlbhpc/conf``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dlbhpc.errors import DlbhpcError
from dlbhpc.files import digest
from dlbhpc.images.lock import Locked, read_lock
from dlbhpc.layout import CONF, CONTAINERS
from dlbhpc.recipe.conf import load, names
from dlbhpc.recipe.model import Upstream
from dlbhpc.records import from_plain


@dataclass(frozen=True)
class Deviation:
    """Where an image differs from what its upstream asks for, and why (a sentence)."""

    subject: str
    reason: str


@dataclass(frozen=True)
class Environment:
    """``image.yaml``: what the image has besides its locked packages.

    ``python`` is the interpreter's version (``3.12``). ``base`` and ``cuda`` are Docker references
    with a tag; ``cuda`` is where the CUDA compiler comes from, None where nothing is compiled.
    ``index_date`` is the day up to which the package index was looked at for the lock.
    ``from_source`` are the packages without a wheel, in the order in which they are built, with
    ``build_environment``. ``imports`` are modules that the image's test imports besides the entry
    point. ``licence`` is the upstream's (SPDX), None where it has no licence file.
    """

    python: str
    base: str
    cuda: str | None
    index_date: str
    licence: str | None
    from_source: tuple[str, ...]
    build_environment: Mapping[str, str]
    imports: tuple[str, ...]
    deviations: tuple[Deviation, ...]


@dataclass(frozen=True)
class ImageSpec:
    """One image: its upstream's pin, its environment, and its locked packages."""

    upstream: Upstream
    environment: Environment
    folder: Path
    packages: tuple[Locked, ...]

    @property
    def name(self) -> str:
        return self.upstream.name

    @property
    def redistributable(self) -> bool:
        """Whether the upstream's licence lets the image be passed on; without one, it does not."""
        return self.environment.licence is not None

    @property
    def lock_digest(self) -> str:
        """SHA-256 over the locked packages: names, versions and hashes, in a fixed order."""
        return digest([package.line for package in self.packages])

    @property
    def lock(self) -> Path:
        return self.folder / "requirements.lock"

    @property
    def base_lock(self) -> Path:
        """Where the digests of the base images stand, from the first build on."""
        return self.folder / "base.lock"


def image_source(name: str) -> PurePosixPath:
    """Where an upstream's frozen source lies in its image."""
    return PurePosixPath("/opt/dlbhpc/upstream") / name


def frozen_source(upstream: Upstream) -> PurePosixPath:
    """What in the image stands for a launch's source folder; the bundled upstream's is deeper."""
    source = image_source(upstream.name)
    return source if upstream.commit else source / "dlbhpc/reference"


def list_images(containers: Path = CONTAINERS) -> list[str]:
    """The names of all images, sorted."""
    return sorted(path.parent.name for path in containers.glob("*/image.yaml"))


def load_image(name: str, containers: Path = CONTAINERS, conf: Path = CONF) -> ImageSpec:
    """Read one image's description. Raises DlbhpcError for an unknown name or a broken file."""
    known = list_images(containers)
    if name not in known:
        raise DlbhpcError(f"there is no image {name!r}: choose one of {', '.join(known)}")
    folder = containers / name
    environment = load_environment(folder)
    packages = read_lock(folder / "requirements.lock")
    locked = {package.name for package in packages}
    if missing := [package for package in environment.from_source if package not in locked]:
        raise DlbhpcError(
            f"{folder / 'image.yaml'}: from_source names {', '.join(missing)}, which the lock "
            "does not hold"
        )
    return ImageSpec(load_upstream(name, conf), environment, folder, packages)


def load_environment(folder: Path) -> Environment:
    """Read ``image.yaml`` alone, as the lock's making needs it."""
    path = folder / "image.yaml"
    environment = from_plain(Environment, load(path), str(path))
    if not re.fullmatch(r"3\.\d+", environment.python):
        raise DlbhpcError(f"{path}: python is {environment.python!r}, it must look like '3.12'")
    return environment


def load_upstream(name: str, conf: Path = CONF) -> Upstream:
    """The pin of an upstream. Raises DlbhpcError for one that dlbhpc/conf does not know."""
    if name not in names("upstream", conf):
        raise DlbhpcError(f"there is no upstream {name!r} in {conf / 'upstream'}")
    path = conf / "upstream" / f"{name}.yaml"
    return from_plain(Upstream, load(path), str(path))
