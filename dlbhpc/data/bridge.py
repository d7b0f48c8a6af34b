"""The data bridge: a prepared dataset as the cache that an upstream looks for.

An upstream that finds its folder ``ALIAS`` in the cache loads it and tokenizes nothing. Ours hold
the blocks of the prepared dataset and an attention mask of ones. They are written at the level of
Arrow: the values are handed from file to file as they are, no row is ever built.

``bridge.json`` beside the aliases says what they were made of, with digests, sizes and times of the
files, so that a current cache is recognised without being read, and one that got new times alone by
its digests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlbhpc.data import arrow
from dlbhpc.data.lock import exclusive
from dlbhpc.data.manifest import (
    Manifest,
    ManifestError,
    file_digests,
    read_manifest,
    verify_processed,
)
from dlbhpc.files import write_json
from dlbhpc.layout import Layout
from dlbhpc.recipe import Dataset

if TYPE_CHECKING:
    import pyarrow

COLUMNS = {"input_ids": "int32", "attention_mask": "uint8"}
RECORD = "bridge.json"
SCHEMA_VERSION = 2
Say = Callable[[str], None]


def ensure_bridge(upstream: str, dataset: Dataset, layout: Layout, say: Say) -> Path:
    """The cache of ``upstream`` for ``dataset``: the current one, or a new one in its place.

    A cache of ours that is outdated or torn is set aside, since runs may be reading it, and made
    again; a folder that is not ours is left alone. One process makes it, others wait.

    Raises:
        ManifestError: the dataset is not prepared, is not what its manifest says, or the folder in
            the cache's place is not ours.
        LockLost: this process was stopped for so long that another one makes it.
    """
    manifest = read_manifest(layout.manifest(dataset.name), dataset.name, dataset.sequence_length)
    cache = layout.training_cache(upstream, dataset.name)
    wanted = _wanted(upstream, dataset, manifest)
    if _is_current(cache, wanted):
        return cache
    cache.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(cache.parent / f".{dataset.name}.lock", f"writing {cache}") as lock:
        if _is_current(cache, wanted) or _is_unchanged(cache, wanted, say):
            return cache
        say(f"writing the data of {dataset.name} for {upstream} to {cache}")
        building = lock.workplace(cache)
        _write(building, dataset, manifest, layout.processed(dataset.processed), wanted)
        if aside := lock.publish(cache, "outdated"):
            say(f"{cache} was outdated: set aside as {aside}; remove it when no run reads it")
    return cache


def _wanted(upstream: str, dataset: Dataset, manifest: Manifest) -> dict[str, Any]:
    """What the record of a current cache says, but for its files."""
    return {
        "schema_version": SCHEMA_VERSION,
        "upstream": upstream,
        "dataset": dataset.name,
        "manifest_sha256": manifest.sha256,
        "splits": dict(dataset.aliases),
    }


def _read_record(cache: Path) -> dict[str, Any] | None:
    """The record of a cache; None when there is no cache. One without a record is not ours."""
    if not cache.exists():
        return None
    try:
        record = json.loads((cache / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ManifestError(
            f"{cache} is there and is not ours (it has no {RECORD}): move it away, and it is "
            "written from the prepared data"
        ) from None
    except (OSError, ValueError) as error:
        raise ManifestError(
            f"{cache / RECORD} cannot be read ({error}): remove {cache}, and it is written again"
        ) from None
    return record if isinstance(record, dict) else {}


def _record_of(cache: Path, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of a cache that was made of what is wanted; None when it has to be written.

    Raises ManifestError for a folder that is not ours, or that is another dataset's.
    """
    record = _read_record(cache)
    if record is None:
        return None
    for key in ("upstream", "dataset"):
        if record.get(key) != wanted[key]:
            raise ManifestError(
                f"{cache} is a cache of {key} {record.get(key)!r}, not of {wanted[key]!r}: "
                "move it away, and it is written from the prepared data"
            )
    return record if {key: record.get(key) for key in wanted} == dict(wanted) else None


def _is_current(cache: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether the cache is what is wanted, by its record and the sizes and times of its files."""
    record = _record_of(cache, wanted)
    return record is not None and record["files"] == _looks(cache, record["files"])


def _is_unchanged(cache: Path, wanted: Mapping[str, Any], say: Say) -> bool:
    """Whether its files changed in nothing but times, as a copy's; the record gets the new ones.

    A cache that lacks a file, or has one of another size, is not read.
    """
    record = _record_of(cache, wanted)
    if record is None:
        return False
    looks = _looks(cache, record["files"])
    sizes = [{path: size for path, (size, _) in each.items()} for each in (record["files"], looks)]
    if sizes[0] != sizes[1]:
        return False
    say(f"the files of {cache} have other times than when they were written: comparing them")
    if file_digests(cache / path for path in looks) != [record["sha256"][path] for path in looks]:
        return False
    write_json(cache / RECORD, {**record, "files": looks})
    return True


def _looks(cache: Path, paths: Iterable[str]) -> dict[str, list[int]]:
    """Size and time of those files of a cache that are there."""
    found = {}
    for path in paths:
        if (cache / path).is_file():
            status = (cache / path).stat()
            found[path] = [status.st_size, status.st_mtime_ns]
    return found


def _write(
    cache: Path, dataset: Dataset, manifest: Manifest, processed: Path, wanted: Mapping[str, Any]
) -> None:
    """Write the files of a cache, and its record, to the folder ``cache``."""
    verify_processed(manifest, processed, tuple(dict.fromkeys(dataset.aliases.values())))
    paths = [
        f"{alias}/{name}"
        for alias, split in dataset.aliases.items()
        for name in bridge_split(
            processed / split,
            cache / alias,
            length=dataset.sequence_length,
            samples=manifest.split(split).samples,
            name=split,
        )
    ]
    digests = file_digests(cache / path for path in paths)
    record = {
        **wanted,
        "files": _looks(cache, paths),
        "sha256": dict(zip(paths, digests, strict=True)),
    }
    arrow.write_text(cache / RECORD, json.dumps(record, indent=1, sort_keys=True) + "\n")


def bridge_split(source: Path, target: Path, *, length: int, samples: int, name: str) -> list[str]:
    """Write the blocks of the dataset folder ``source`` and masks of ones to ``target``.

    Returns the names of the files in it.

    Raises:
        ManifestError: the source has other columns, other blocks, or another number of them than
            ``samples``.
    """
    target.mkdir()
    files = arrow.data_files(source)
    rows = 0
    for path in files:
        check_columns(path)
        rows += arrow.write_file(target / path.name, COLUMNS, _with_mask(path, length))
    check_samples(source, rows, samples)
    names = [path.name for path in files]
    return [*names, *arrow.finish_split(target, COLUMNS, names, name)]


def _with_mask(path: Path, length: int) -> Iterator[pyarrow.RecordBatch]:
    """The record batches of ``path`` with a mask of ones; the values are not copied."""
    import numpy
    import pyarrow

    ones, schema = pyarrow.array([], pyarrow.uint8()), arrow.schema(COLUMNS)
    for batch in arrow.read_file(path):
        rows = batch.num_rows
        values = blocks(batch, length, path)
        if len(ones) < rows * length:
            ones = pyarrow.array(numpy.ones(rows * length, numpy.uint8))
        masks = arrow.lists(ones.slice(0, rows * length), rows, length)
        yield pyarrow.record_batch([arrow.lists(values, rows, length), masks], schema)


def blocks(batch: pyarrow.RecordBatch, length: int, path: Path) -> pyarrow.Array:
    """The token ids of all blocks of a record batch, as one array (int32) over the same memory.

    Raises ManifestError when not every block has ``length`` tokens; ``path`` names the file.
    """
    import numpy
    import pyarrow

    column = batch.column("input_ids")
    values = column.flatten()
    if column.null_count or values.null_count or len(values) != batch.num_rows * length:
        raise ManifestError(f"{path}: not every block has {length} tokens; prepare the data again")
    if pyarrow.types.is_list(column.type):
        offsets = column.offsets.to_numpy()
        if not numpy.all(numpy.diff(offsets) == length):
            raise ManifestError(
                f"{path}: not every block has {length} tokens; prepare the data again"
            )
    return values


def check_columns(path: Path) -> None:
    """Refuse a file of blocks that has another column, or tokens of another type.

    Raises ManifestError.
    """
    import pyarrow

    schema = arrow.file_schema(path)
    if other := sorted({*schema.names} ^ {"input_ids"}):
        raise ManifestError(
            f"{path} has other columns than input_ids alone ({', '.join(other)}): it is not what "
            "`data prepare` writes; prepare the data again"
        )
    kind = schema.field("input_ids").type
    if getattr(kind, "value_type", None) != pyarrow.int32():
        raise ManifestError(f"{path}: input_ids is {kind}, it must be a list of int32")


def check_samples(folder: Path, found: int, expected: int) -> None:
    """Refuse a number of blocks that is not the manifest's. Raises ManifestError."""
    if found != expected:
        raise ManifestError(
            f"{folder} holds {found:,} blocks, its manifest says {expected:,}: prepare the data "
            "again"
        )
