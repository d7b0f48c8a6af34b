"""``images/NAME.json``: what an image was made of, and what its file digests to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.files import fingerprint, read_json, recall, remember, write_json
from dlbhpc.images.sif import Digests, read_digests
from dlbhpc.layout import Layout
from dlbhpc.records import from_plain, to_plain

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class ImageRecord:
    """One built image.

    ``file`` is its name in images/. ``sif_sha256`` is of the whole file, ``content_sha256`` of its
    squashfs partition, which two builds of the same inputs by one version of dlbhpc share.
    ``inputs_sha256`` is over what decides the content, but for that version, which is a label.
    ``base_digest`` is None for a fresh Debian.
    """

    name: str
    file: str
    sif_sha256: str
    content_sha256: str
    inputs_sha256: str
    definition_sha256: str
    lock_sha256: str
    repository: str | None
    commit: str
    base: str
    base_digest: str | None
    builder: str
    redistributable: bool
    labels: Mapping[str, str]
    time: float


def image_file(name: str, commit: str) -> str:
    """``NAME-COMMIT12.sif``."""
    return f"{name}-{commit.removeprefix('bundled-')[:12]}.sif"


def record_path(layout: Layout, name: str) -> Path:
    return layout.images / f"{name}.json"


def read_record(layout: Layout, name: str) -> ImageRecord:
    """The record of an image. Raises DlbhpcError when it was not built, or the record is broken."""
    path = record_path(layout, name)
    if not path.exists():
        raise DlbhpcError(f"the image {name} is not built: make image-{name}")
    return _read(path, name)


def read_record_of(layout: Layout, name: str, content: str) -> ImageRecord:
    """The record of the image with this content, if it was kept, or else of the present one.

    Raises as read_record does.
    """
    kept = _kept(layout, name, content)
    return _read(kept, name) if kept.exists() else read_record(layout, name)


def keep_other(layout: Layout, name: str, target: Path, content: str) -> None:
    """Keep under its digest each image that a new one would replace, where its content is another.

    Runs may go through it: they find it there by the content that they began with. ``target`` is
    the new image's place. A file counts by what it holds, whatever its record says.
    """
    record: ImageRecord | None
    try:
        record = read_record(layout, name)
    except DlbhpcError:
        record = None
    places = {target} | ({layout.images / record.file} if record else set())
    for path in places:
        if not path.exists():
            continue
        try:
            present = (_remembered(path) or read_digests(path)).content
        except DlbhpcError:
            continue  # no image at all
        if present == content:
            continue
        file = path.with_name(f"{path.stem}-{present[:12]}{path.suffix}")
        if record is not None and record.content_sha256 == present:
            # The record first: it is looked for by content, and says what is missing until then.
            _write(_kept(layout, name, present), replace(record, file=file.name))
        path.replace(file)


def _kept(layout: Layout, name: str, content: str) -> Path:
    return layout.images / f"{name}-{content[:12]}.json"


def _read(path: Path, name: str) -> ImageRecord:
    values = read_json(path)
    if values.pop("schema_version", None) != SCHEMA_VERSION:
        raise DlbhpcError(f"{path} is of another version of dlbhpc: make image-{name}")
    return from_plain(ImageRecord, values, str(path))


def write_record(layout: Layout, record: ImageRecord) -> None:
    _write(record_path(layout, record.name), record)


def _write(path: Path, record: ImageRecord) -> None:
    write_json(path, {"schema_version": SCHEMA_VERSION, **to_plain(record)})


def check_pin(record: ImageRecord, commit: str) -> None:
    """Refuse an image of another commit than the pinned one."""
    if record.commit != commit:
        raise DlbhpcError(
            f"the image {record.file} holds {record.name} at {record.commit}, the pin is {commit}: "
            f"make image-{record.name}"
        )


def verify(layout: Layout, record: ImageRecord, *, afresh: bool) -> Path:
    """Prove an image's file against its record; returns its path.

    ``afresh`` reads every byte. Otherwise a digest that was taken before counts as long as the
    file's size, modification time and inode are the same. Raises DlbhpcError naming what differs.
    """
    path = layout.images / record.file
    if not path.is_file():
        raise DlbhpcError(f"the image {path} is missing: make image-{record.name}")
    remembered = None if afresh else _remembered(path)
    mark = fingerprint(path)
    found = remembered or read_digests(path)
    for what, given, recorded in (
        ("content (squashfs partition)", found.content, record.content_sha256),
        ("file", found.sif, record.sif_sha256),
    ):
        if given != recorded:
            raise DlbhpcError(
                f"the image {path} is not the one that was built: the sha256 of its {what} is "
                f"{given}, {record_path(layout, record.name).name} records {recorded}; "
                f"make image-{record.name}"
            )
    if remembered is None:
        remember_digests(path, found, mark)
    return path


def remember_digests(path: Path, digests: Digests, mark: Mapping[str, int]) -> None:
    """Keep a file's digests beside it; ``mark`` is its fingerprint from before it was read."""
    remember(_memory(path), mark, to_plain(digests))


def _remembered(path: Path) -> Digests | None:
    if (values := recall(_memory(path), path)) is None:
        return None
    return Digests(sif=str(values.get("sif")), content=str(values.get("content")))


def _memory(path: Path) -> Path:
    return path.with_name(f".{path.name}.digests.json")
