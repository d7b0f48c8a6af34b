"""Prepare a pinned dataset: raw text -> token blocks in data/processed, and their manifest.

The documents are cut into spans of a fixed number, one for each file of the result, and processes
on all cores build file after file. A file appears when it is whole, in a folder beside the final
one: an interrupted preparation goes on with the files that are missing. The result depends on the
text, the tokenizer and the rules alone, not on cores, time or place.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlbhpc.data import arrow
from dlbhpc.data.detokenize import DETOKENIZERS
from dlbhpc.data.encode import blocks_of, load_tokenizer, token_id
from dlbhpc.data.lock import Lock, exclusive
from dlbhpc.data.manifest import (
    SCHEMA_VERSION,
    ManifestError,
    digest_files,
    read_manifest,
    verify_processed,
)
from dlbhpc.data.raw import Documents, RawPins, open_documents, open_tokenizer
from dlbhpc.layout import Layout
from dlbhpc.recipe import Dataset
from dlbhpc.records import to_plain

COLUMNS = {"input_ids": "int32"}
RULES = 1
"""Version of the rules by which text becomes blocks: another one starts over."""
_SOURCE = "source.json"
_BLOCKS_PER_BATCH = 1000
_PROGRESS_SECONDS = 10.0


@dataclass(frozen=True)
class Part:
    """One file of the result, and everything that decides its content."""

    path: Path
    documents: Documents
    start: int
    stop: int
    detokenizer: str | None
    tokenizer: Path
    padding: str
    boundary: int
    length: int


def prepare_pinned(
    dataset: Dataset, pins: RawPins, layout: Layout, processes: int | None = None
) -> Path:
    """Prepare ``dataset`` from its pinned raw data and return the path of its manifest.

    Data that is prepared already is compared with its manifest and left alone. ``processes`` is all
    cores by default.

    Raises:
        ManifestError: raw data or tokenizer are not what is pinned, or prepared data is there that
            does not match its manifest.
        LockLost: this process was stopped for so long that another one prepares it.
    """
    processed, manifest_path = layout.processed(dataset.processed), layout.manifest(dataset.name)
    processed.parent.mkdir(parents=True, exist_ok=True)
    manifest_path.parent.mkdir(parents=True, exist_ok=True)
    if _is_prepared(dataset, pins, layout):  # also where nothing may be written
        return manifest_path
    lock_file = processed.parent / f".{processed.name}.lock"
    with exclusive(lock_file, f"preparing {dataset.name}") as lock:
        if not _is_prepared(dataset, pins, layout):
            _prepare(dataset, pins, layout, processes or len(os.sched_getaffinity(0)), lock)
    return manifest_path


def _is_prepared(dataset: Dataset, pins: RawPins, layout: Layout) -> bool:
    processed, manifest_path = layout.processed(dataset.processed), layout.manifest(dataset.name)
    if not manifest_path.exists():
        return False
    manifest = read_manifest(manifest_path, dataset.name, dataset.sequence_length)
    verify_processed(manifest, processed, tuple(pins.splits))
    print(f"{dataset.name}: already prepared, {processed} matches {manifest_path}")
    return True


def _prepare(dataset: Dataset, pins: RawPins, layout: Layout, processes: int, lock: Lock) -> None:
    if dataset.tokenizer is None:
        raise ManifestError(f"{dataset.name} names no tokenizer to prepare it with")
    processed, manifest_path = layout.processed(dataset.processed), layout.manifest(dataset.name)
    documents = open_documents(pins, layout)
    snapshot = open_tokenizer(dataset.tokenizer, layout)
    tokenizer = load_tokenizer(snapshot, pins.padding)
    boundary = token_id(tokenizer, pins.boundary, snapshot)
    added = 0 if token_id(tokenizer, pins.padding, snapshot) < dataset.base_vocab else 1
    if tokenizer.get_vocab_size() != dataset.base_vocab + added:
        raise ManifestError(
            f"the tokenizer {snapshot} has {tokenizer.get_vocab_size() - added} tokens, "
            f"{dataset.name} needs {dataset.base_vocab}"
        )
    source = {
        "rules": RULES,
        "raw": to_plain(pins),
        "tokenizer": to_plain(dataset.tokenizer),
        "tokenizer_sha256": _sha256(snapshot / "tokenizer.json"),
        "sequence_length": dataset.sequence_length,
    }
    partial = lock.workplace(processed, keep=True)
    _go_on_or_start_over(partial, source)
    parts = {
        name: [
            Part(
                path=partial / name / arrow.file_name(i, count),
                documents=documents[split.files],
                start=start,
                stop=min(split.stop, start + pins.documents_per_file),
                detokenizer=pins.detokenizer,
                tokenizer=snapshot,
                padding=pins.padding,
                boundary=boundary,
                length=dataset.sequence_length,
            )
            for i, start in enumerate(range(split.start, split.stop, pins.documents_per_file))
        ]
        for name, split in pins.splits.items()
        for count in [math.ceil((split.stop - split.start) / pins.documents_per_file)]
    }
    for name in parts:
        (partial / name).mkdir(exist_ok=True)
    _build_all(dataset.name, [part for split in parts.values() for part in split], processes)
    samples = {}
    for name, split in parts.items():
        arrow.finish_split(partial / name, COLUMNS, (part.path.name for part in split), name)
        samples[name] = sum(batch.num_rows for p in split for batch in arrow.read_file(p.path))
        if samples[name] == 0:
            raise ManifestError(f"{dataset.name}: {name} has too little text for one block")
    arrow.write_text(partial / "dataset_dict.json", json.dumps({"splits": list(parts)}))
    content = {
        "schema_version": SCHEMA_VERSION,
        "dataset": dataset.name,
        "sequence_length": dataset.sequence_length,
        "vocab_size": dataset.base_vocab,
        "tokenizer_revision": dataset.tokenizer.revision,
        "features": COLUMNS,
        "splits": {
            name: {
                "samples": samples[name],
                "documents": split.stop - split.start,
                "sha256": digest_files(partial / name, "*.arrow"),
            }
            for name, split in pins.splits.items()
        },
        "source": source,
    }
    (partial / _SOURCE).unlink()
    if aside := lock.publish(processed, "without-manifest"):
        print(f"{dataset.name}: {processed} had no manifest; set aside as {aside}", flush=True)
    lock.check()
    temporary = manifest_path.with_name(f".{manifest_path.name}.{os.getpid()}")
    arrow.write_text(temporary, json.dumps(content, indent=2, sort_keys=True) + "\n")
    temporary.replace(manifest_path)
    print(f"{dataset.name}: prepared {samples}, manifest {manifest_path}", flush=True)


def _go_on_or_start_over(partial: Path, source: dict[str, Any]) -> None:
    """Keep what an interrupted preparation of the very same source left; remove any other."""
    record = partial / _SOURCE
    text = json.dumps(source, indent=1, sort_keys=True)
    if record.is_file() and record.read_text(encoding="utf-8") == text:
        for half in partial.glob("*/.*"):
            half.unlink()
        return
    shutil.rmtree(partial)
    partial.mkdir()
    arrow.write_text(record, text)


def _build_all(name: str, parts: list[Part], processes: int) -> None:
    missing = [part for part in parts if not part.path.exists()]
    if len(missing) < len(parts):
        print(f"{name}: goes on, {len(parts) - len(missing)} of {len(parts)} files are there")
    total = sum(part.stop - part.start for part in missing)
    began = told = time.monotonic()
    done = 0
    for finished in _build(missing, min(processes, len(missing))):
        done += finished.stop - finished.start
        now = time.monotonic()
        if now - told > _PROGRESS_SECONDS or done == total:
            told, rate = now, done / (now - began)
            print(
                f"{name}: {done:,} of {total:,} documents, {rate:,.0f} a second, "
                f"{(total - done) / rate / 60:.0f} min left",
                flush=True,
            )


def _build(parts: list[Part], processes: int) -> Iterator[Part]:
    if processes <= 1:
        for part in parts:
            yield build_part(part)
        return
    # Not forked: the tokenizer's and Arrow's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_leave_with_the_parent)
    try:
        for future in as_completed([pool.submit(build_part, part) for part in parts]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_with_the_parent() -> None:
    """End this process when the one that started it is gone, be it killed."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is one process for each core already
    parent = multiprocessing.parent_process()
    assert parent is not None, "this runs in a process of a pool"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def build_part(part: Part) -> Part:
    """Build one file of the result; it appears whole or not at all."""
    detokenize = DETOKENIZERS[part.detokenizer]
    tokenizer = load_tokenizer(part.tokenizer, part.padding)
    texts = map(detokenize, part.documents.read(part.start, part.stop))
    blocks = blocks_of(texts, tokenizer, part.length, part.boundary)
    arrow.write_file(part.path, COLUMNS, _batches(blocks, part.length))
    return part


def _batches(blocks: Iterator[Any], length: int) -> Iterator[Any]:
    """Record batches of a fixed number of blocks, whatever each group of documents came to."""
    import numpy
    import pyarrow

    def batch(rows: Any) -> Any:
        values = pyarrow.array(rows.reshape(-1))
        return pyarrow.record_batch([arrow.lists(values, len(rows), length)], arrow.schema(COLUMNS))

    waiting: list[Any] = []
    for group in blocks:
        waiting.append(group)
        if sum(map(len, waiting)) >= _BLOCKS_PER_BATCH:
            rows = numpy.concatenate(waiting)
            whole = len(rows) // _BLOCKS_PER_BATCH * _BLOCKS_PER_BATCH
            for start in range(0, whole, _BLOCKS_PER_BATCH):
                yield batch(rows[start : start + _BLOCKS_PER_BATCH])
            waiting = [rows[whole:]]
    if any(map(len, waiting)):
        yield batch(numpy.concatenate(waiting))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
