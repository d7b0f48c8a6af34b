"""Building an image: everything is verified first, and nothing half-made has the final name."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.files import fingerprint, write_bytes
from dlbhpc.images.base import Base, read_base_lock, write_base_lock
from dlbhpc.images.definition import (
    EPOCH,
    inputs_digest,
    labels,
    render,
    staged_packages,
)
from dlbhpc.images.exclusive import exclusive
from dlbhpc.images.program import ended_by_signals, find_program, program_version, run
from dlbhpc.images.record import (
    ImageRecord,
    image_file,
    keep_other,
    read_record,
    record_path,
    remember_digests,
    verify,
    write_record,
)
from dlbhpc.images.registry import resolve_digest
from dlbhpc.images.rootless import rootless_advice
from dlbhpc.images.scratch import scratch
from dlbhpc.images.sif import read_digests
from dlbhpc.images.source import source_commit, stage_source
from dlbhpc.images.spec import ImageSpec
from dlbhpc.images.wheelhouse import check_wheelhouse
from dlbhpc.layout import Layout

Say = Callable[[str], None]

_GIB = 1 << 30
_ROOM = {True: 60 * _GIB, False: 12 * _GIB}
"""Free space that a build wants, with and without the CUDA compiler."""
_WHEELHOUSE = "/mnt"
"""Where the definition looks for wheels: a folder that every base has."""
_HIDDEN = ("/tmp", "/var/tmp")
"""Folders of the host that the builder mounts into %post, to write, unless others lie over them."""
_ISOLATED = ("--containall", "--cleanenv", "--no-home")
"""How the image's test runs: on the finished file, with nothing of the host."""


@dataclass(frozen=True)
class Built:
    """An image that is there; ``fresh`` says that it was built just now."""

    path: Path
    record: ImageRecord
    fresh: bool


def known_digests(spec: ImageSpec, base: Base) -> dict[str, str]:
    """The digests of what the image starts from, as far as they are known without a network."""
    digests = read_base_lock(spec.base_lock)
    if "@" in base.reference:
        digests[base.reference] = base.reference.partition("@")[2]
    if base.kind == "localimage":
        digests[base.reference] = f"sha256:{read_digests(Path(base.reference)).content}"
    return digests


def build(spec: ImageSpec, base: Base, layout: Layout, wheelhouse: Path | None, say: Say) -> Built:
    """Build an image, unless it is there already, made of the same inputs.

    ``wheelhouse`` is a folder that holds every locked file, for a site without a package index.
    Raises DlbhpcError for what is missing, changed, or fails; then no image of the final name was
    made or touched.
    """
    program = find_program()
    commit = source_commit(spec.upstream)
    digests = known_digests(spec, base)
    missing = [name for name in _docker_references(spec, base) if name not in digests]
    if not missing and (built := _already_built(spec, base, layout, commit, digests)):
        return built
    if wheelhouse is not None:
        check_wheelhouse(wheelhouse, spec)
    _check_room(layout.images, spec)
    digests |= _resolve(spec, missing, say)
    layout.images.mkdir(parents=True, exist_ok=True)
    with ended_by_signals(), scratch(layout.images, spec.name, say) as work:
        # The tools that unpack and squash run as another user where a build is unprivileged.
        work.chmod(0o755)
        definition = render(spec, base, commit, digests)
        stage = work / "stage"
        stage_source(spec.upstream, layout, stage / "source", say)
        (stage / "packages").mkdir()
        for name, text in staged_packages(spec).items():
            (stage / "packages" / name).write_text(text, encoding="utf-8")
        (stage / "nothing").touch()
        (stage / "image.def").write_text(definition, encoding="utf-8")
        _let_all_read(stage)
        image = work / "image.sif"
        variables = _variables(layout.images, work)
        _run_builder(build_argv(program, image, work, wheelhouse), stage, variables, say)
        run([program, "test", *_ISOLATED, str(image)], stage, variables, say)
        mark = fingerprint(image)
        found = read_digests(image)
        path = layout.images / image_file(spec.name, commit)
        record = ImageRecord(
            name=spec.name,
            file=path.name,
            sif_sha256=found.sif,
            content_sha256=found.content,
            inputs_sha256=inputs_digest(spec, base, commit, digests),
            definition_sha256=hashlib.sha256(definition.encode()).hexdigest(),
            lock_sha256=spec.lock_digest,
            repository=spec.upstream.repository,
            commit=commit,
            base=base.text,
            base_digest=digests.get(base.reference),
            builder=program_version(program),
            redistributable=spec.redistributable,
            labels=labels(spec, commit),
            time=time.time(),
        )
        with exclusive(layout.images / f".{spec.name}.lock"):
            keep_other(layout, spec.name, path, found.content)
            # The record goes first: an image without its record would count as a changed one.
            record_path(layout, spec.name).unlink(missing_ok=True)
            image.replace(path)
            write_record(layout, record)
            write_bytes(layout.images / f"{path.stem}.def", definition.encode())
            remember_digests(path, found, mark)
    return Built(path, record, fresh=True)


def build_argv(program: str, image: Path, work: Path, wheelhouse: Path | None) -> list[str]:
    """The command that builds ``image.def``; an empty folder of ours hides each of the host's.

    The builder's own test would run with the user's home and /tmp: the image is tested afterwards.
    """
    # Forced, our fixed build date goes over the builder's own, which would differ each time.
    argv = [program, "build", "--notest", "--force"]
    if os.geteuid() != 0:
        argv.append("--fakeroot")
    for place in _HIDDEN:
        empty = work / "empty" / place.strip("/")
        empty.mkdir(parents=True)
        empty.chmod(0o1777)
        argv += ["--bind", f"{empty}:{place}"]
    if wheelhouse is not None:
        argv += ["--bind", f"{wheelhouse.resolve()}:{_WHEELHOUSE}:ro"]
    return [*argv, str(image), "image.def"]


def _run_builder(argv: list[str], stage: Path, variables: Mapping[str, str], say: Say) -> None:
    try:
        run(argv, stage, variables, say)
    except DlbhpcError as error:
        advice = rootless_advice(os.geteuid())
        if advice is None:
            raise
        raise DlbhpcError(f"{error}\n{advice}") from error


def _docker_references(spec: ImageSpec, base: Base) -> list[str]:
    """The tags whose digests are to be known; a reference with a digest says it itself."""
    references = [base.reference] if base.kind == "docker" and "@" not in base.reference else []
    return references + ([spec.environment.cuda] if spec.environment.cuda else [])


def _already_built(
    spec: ImageSpec, base: Base, layout: Layout, commit: str, digests: Mapping[str, str]
) -> Built | None:
    try:
        record = read_record(layout, spec.name)
        if record.inputs_sha256 != inputs_digest(spec, base, commit, digests):
            return None
        return Built(verify(layout, record, afresh=False), record, fresh=False)
    except DlbhpcError:
        return None  # not there, or not what it was: it is built


def _resolve(spec: ImageSpec, missing: list[str], say: Say) -> dict[str, str]:
    """Ask for the digests that are not known yet, and require them from now on."""
    found = {}
    for reference in missing:
        found[reference] = resolve_digest(reference)
        say(f"{reference} is {found[reference]}; {spec.base_lock} requires it from now on")
    if found:
        write_base_lock(spec.base_lock, {**read_base_lock(spec.base_lock), **found})
    return found


def _check_room(folder: Path, spec: ImageSpec) -> None:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free, wanted = shutil.disk_usage(there).free, _ROOM[spec.environment.cuda is not None]
    if free < wanted:
        raise DlbhpcError(
            f"building {spec.name} wants {wanted // _GIB} GiB of free space in {folder}, there are "
            f"{free // _GIB}: make room, or name another --root"
        )


def _variables(images: Path, work: Path) -> dict[str, str]:
    """Caches and temporary files lie with the images: a home or /tmp would overflow."""
    cache, temporary = images / ".cache", work / "tmp"
    cache.mkdir(exist_ok=True)
    temporary.mkdir()
    return {
        **{f"{family}_CACHEDIR": str(cache) for family in ("APPTAINER", "SINGULARITY")},
        **{f"{family}_TMPDIR": str(temporary) for family in ("APPTAINER", "SINGULARITY")},
        "SOURCE_DATE_EPOCH": str(EPOCH),
    }


def _let_all_read(folder: Path) -> None:
    """Modes that do not depend on the builder's umask."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
