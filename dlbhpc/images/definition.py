"""The definition of an image as text: pure, and nothing of the machine that renders it is in it."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from dlbhpc import __version__
from dlbhpc.errors import DlbhpcError
from dlbhpc.files import digest
from dlbhpc.images.base import Base, pinned
from dlbhpc.images.spec import ImageSpec, frozen_source, image_source
from dlbhpc.layout import TEMPLATES

EPOCH = 1767225600
"""2026-01-01T00:00:00Z: no file in an image is newer, so that two builds do not differ in times."""
_BUILD_DATE = "2026-01-01T00:00:00Z"
_VALUE = re.compile(r"[A-Za-z0-9/.][A-Za-z0-9._:/@+=~,-]*")
_DEBIAN_PACKAGES = ("ca-certificates", "python3", "python3-venv")
_DEBIAN_COMPILER = ("g++", "python3-dev")
_SHOWN_VERSIONS = ("torch", "lightning", "transformers", "datasets", "hydra-core", "flash-attn")


def render(
    spec: ImageSpec,
    base: Base,
    commit: str,
    digests: Mapping[str, str],
    version: str = __version__,
) -> str:
    """The definition's text.

    ``commit`` is the upstream's pin, or the digest of the bundled one. ``digests`` are the known
    digests of Docker references; one that is missing stays a tag, as before the first build.
    Raises DlbhpcError for a value that could end its line or its word.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # a definition is no markup; every value is checked
    )
    return environment.get_template("image.def.j2").render(
        _values(spec, base, commit, digests, version)
    )


def inputs_digest(spec: ImageSpec, base: Base, commit: str, digests: Mapping[str, str]) -> str:
    """What decides an image's content: the same digest, and it is not built again.

    The version of dlbhpc, which is one of the labels, is not among it: an image that is there stays
    good. A local image is named by its path in the definition, and counts by its content.
    """
    text = render(spec, base, commit, digests, version="0")
    return digest([text, spec.lock_digest, digests.get(base.reference)])


def labels(spec: ImageSpec, commit: str, version: str = __version__) -> dict[str, str]:
    """The labels that the image carries."""
    upstream, licence = spec.upstream, spec.environment.licence
    return {
        "org.label-schema.build-date": _BUILD_DATE,
        "org.opencontainers.image.source": upstream.repository or "dlbhpc",
        "org.opencontainers.image.revision": commit,
        "org.opencontainers.image.licenses": licence or "NONE",
        "dlbhpc.upstream": upstream.name,
        "dlbhpc.commit": commit,
        "dlbhpc.lock": spec.lock_digest,
        "dlbhpc.version": version,
        "dlbhpc.redistributable": "yes" if spec.redistributable else "no",
    }


def staged_packages(spec: ImageSpec) -> dict[str, str]:
    """The requirement files that the definition installs from, by name."""
    sources = spec.environment.from_source
    wheels = [package.line for package in spec.packages if package.name not in sources]
    files = {"wheels.txt": "\n".join(wheels) + "\n"}
    for package in spec.packages:
        if package.name in sources:
            files[f"{package.name}.txt"] = package.line + "\n"
    return files


def _values(
    spec: ImageSpec, base: Base, commit: str, digests: Mapping[str, str], version: str
) -> dict[str, Any]:
    upstream, environment = spec.upstream, spec.environment
    source = image_source(spec.name)
    checkout = frozen_source(upstream)
    entrypoint = str(checkout / upstream.entrypoint)
    import_root = checkout / upstream.import_root if upstream.import_root else source
    folder = posixpath.dirname(entrypoint)
    locked = {package.name for package in spec.packages}
    imports = list(environment.imports)
    cuda = _docker(environment.cuda, digests) if environment.cuda else None
    words: dict[str, Any] = {
        "cuda": cuda or "",
        "python": environment.python,
        "source": str(source),
        "entrypoint": entrypoint,
        "entry_folder": folder,
        "python_path": f"{posixpath.normpath(str(import_root))}:{folder}",
        "from": _docker(base.reference, digests) if base.kind == "docker" else base.reference,
        "base_mirror": base.mirror or "",
        **{f"label {key}": value for key, value in labels(spec, commit, version).items()},
        **{f"key {key}": key for key in environment.build_environment},
        **environment.build_environment,
        **{f"import {name}": name for name in imports},
        **{f"package {name}": name for name in environment.from_source},
    }
    for what, value in words.items():
        if value and not _VALUE.fullmatch(value):
            raise DlbhpcError(
                f"image {spec.name}: {what} is {value!r}, which a definition cannot hold: letters, "
                "digits and ._:/@+=~,- only"
            )
    return {
        **words,
        "title": f"{spec.name} {commit}",
        "epoch": EPOCH,
        "base": base,
        "debian_packages": _DEBIAN_PACKAGES + (_DEBIAN_COMPILER if cuda else ()),
        "wheels": len(spec.packages) - len(environment.from_source),
        "sources": environment.from_source,
        "build_environment": environment.build_environment,
        "imports": json.dumps(imports),
        "versions": json.dumps([name for name in _SHOWN_VERSIONS if name in locked]),
        "labels": labels(spec, commit, version),
    }


def _docker(reference: str, digests: Mapping[str, str]) -> str:
    known = digests.get(reference)
    return pinned(reference, known) if known else reference
