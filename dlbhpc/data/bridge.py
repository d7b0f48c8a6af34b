"""The data bridge: a prepared dataset as the cache that an upstream looks for.

An upstream that finds its folder ``ALIAS`` in the cache loads it and tokenizes nothing. Ours hold
the blocks of the prepared dataset and an attention mask of ones. They are written at the level of
Arrow: the values are handed from file to file as they are, no row is ever built.

``bridge.json`` beside the aliases says what they were made of, with sizes and times of the files,
so that a current cache is recognised without being read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlbhpc.data import arrow
from dlbhpc.data.lock import exclusive
from dlbhpc.data.manifest import Manifest, ManifestError, read_manifest, verify_processed
from dlbhpc.layout import Layout
from dlbhpc.recipe import Dataset

if TYPE_CHECKING:
    import pyarrow

COLUMNS = {"input_ids": "int32", "attention_mask": "uint8"}
RECORD = "bridge.json"
SCHEMA_VERSION = 1
Say = Callable[[str], None]


def ensure_bridge(upstream: str, dataset: Dataset, layout: Layout, say: Say) -> Path:
    """The cache of ``upstream`` for ``dataset``: the current one, or a new one in its place.

    A cache of ours that is outdated or torn is made again; a folder that is not ours is left alone.
    One process makes it, others wait.

    Raises:
        ManifestError: the dataset is not prepared, is not what its manifest says, or the folder in
            the cache's place is not ours.
    """
    manifest = read_manifest(layout.manifest(dataset.name), dataset.name, dataset.sequence_length)
    cache = layout.training_cache(upstream, dataset.name)
    wanted = _wanted(upstream, dataset, manifest)
    if _is_current(cache, wanted):
        return cache
    cache.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(cache.parent / f".{dataset.name}.lock", f"writing {cache}"):
        if not _is_current(cache, wanted):
            say(f"writing the data of {dataset.name} for {upstream} to {cache}")
            _write(cache, dataset, manifest, layout.processed(dataset.processed), wanted)
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


def _is_current(cache: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether the cache is what is wanted, by its record and the sizes and times of its files.

    A copy has other times: it is written again, which takes no longer than reading it would.

    Raises ManifestError for a folder that is not ours, or that is another dataset's.
    """
    record = _read_record(cache)
    if record is None:
        return False
    for key in ("upstream", "dataset"):
        if record.get(key) != wanted[key]:
            raise ManifestError(
                f"{cache} is a cache of {key} {record.get(key)!r}, not of {wanted[key]!r}: "
                "move it away, and it is written from the prepared data"
            )
    return {key: record.get(key) for key in wanted} == dict(wanted) and record.get(
        "files"
    ) == _files(cache)


def _files(cache: Path) -> dict[str, list[int]]:
    """Size and time of each file of a cache, by its path in it."""
    found = {}
    for path in sorted(cache.rglob("*")):
        if path.is_file() and path.name != RECORD:
            status = path.stat()
            found[path.relative_to(cache).as_posix()] = [status.st_size, status.st_mtime_ns]
    return found


def _write(
    cache: Path, dataset: Dataset, manifest: Manifest, processed: Path, wanted: Mapping[str, Any]
) -> None:
    """Write the cache beside its place and rename it into it."""
    verify_processed(manifest, processed, tuple(dict.fromkeys(dataset.aliases.values())))
    building = cache.with_name(f".{cache.name}.building")
    outdated = cache.with_name(f".{cache.name}.outdated")
    for left in (building, outdated):  # by a process that was killed; we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    for alias, split in dataset.aliases.items():
        bridge_split(
            processed / split,
            building / alias,
            length=dataset.sequence_length,
            samples=manifest.split(split).samples,
            name=split,
        )
    record = {**wanted, "files": _files(building)}
    arrow.write_text(building / RECORD, json.dumps(record, indent=1, sort_keys=True) + "\n")
    if cache.exists():
        cache.rename(outdated)
    building.rename(cache)
    shutil.rmtree(outdated, ignore_errors=True)


def bridge_split(source: Path, target: Path, *, length: int, samples: int, name: str) -> None:
    """Write the blocks of the dataset folder ``source`` and masks of ones to ``target``.

    Raises:
        ManifestError: the source has other columns, other blocks, or another number of them than
            ``samples``.
    """
    target.mkdir(parents=True)
    files = arrow.data_files(source)
    rows = 0
    for path in files:
        check_columns(path)
        rows += arrow.write_file(target / path.name, COLUMNS, _with_mask(path, length))
    check_samples(source, rows, samples)
    arrow.finish_split(target, COLUMNS, (path.name for path in files), name)


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
