"""The raw text as `datasets` keeps what it has loaded, for the upstream that tokenizes it itself.

rdlm calls ``load_dataset("lm1b", cache_dir=...)``. Offline, `datasets` 3 and newer then take what
lies in ``CACHE/lm1b/CONFIG/VERSION/HASH``: Arrow files, and a dataset_info.json that counts them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlbhpc.data import arrow
from dlbhpc.data.lock import exclusive
from dlbhpc.data.manifest import ManifestError
from dlbhpc.data.raw import TEXT, Documents, RawPins, open_documents
from dlbhpc.layout import Layout

if TYPE_CHECKING:
    import pyarrow

CONFIG, VERSION = "plain_text", "0.0.0"
Say = Callable[[str], None]


def ensure_text_cache(name: str, pins: RawPins, layout: Layout, say: Say) -> Path:
    """The folder of the raw text of the dataset ``name`` in the cache of `datasets`.

    It is written from the pinned raw data where it is not there, and appears whole or not at all.

    Raises:
        ManifestError: the raw data is not at hand and cannot be fetched, or what lies in the
            folder's place is not this text.
        LockLost: this process was stopped for so long that another one writes it.
    """
    folder = layout.hf_datasets_cache / name / CONFIG / VERSION / pins.revision
    if folder.exists():
        _check(folder, pins)
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(folder.parent / f".{pins.revision}.lock", f"writing {folder}") as lock:
        if not folder.exists():
            say(f"writing the raw text of {name} to {folder}")
            _write(lock.workplace(folder), name, open_documents(pins, layout))
            lock.publish(folder, "outdated")
    return folder


def _check(folder: Path, pins: RawPins) -> None:
    info = folder / arrow.INFO
    try:
        splits = json.loads(info.read_text(encoding="utf-8"))["splits"]
        found = {split: int(record["num_examples"]) for split, record in splits.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"{info} is damaged ({error}): remove {folder}") from None
    pinned = {split: files.documents for split, files in pins.files.items()}
    if found != pinned:
        raise ManifestError(
            f"{folder} holds {found} documents, {pinned} are pinned: remove it, and it is written "
            "from the raw data"
        )


def _write(folder: Path, name: str, documents: dict[str, Documents]) -> None:
    splits: dict[str, Any] = {}
    for split, source in documents.items():
        count = len(source.files)
        names = [
            f"{name}-{split}.arrow"
            if count == 1
            else f"{name}-{split}-{i:05d}-of-{count:05d}.arrow"
            for i in range(count)
        ]
        for path, target in zip(source.files, names, strict=True):
            _copy(path, folder / target)
        splits[split] = {
            "name": split,
            "num_bytes": sum((folder / target).stat().st_size for target in names),
            "num_examples": sum(source.rows),
            "shard_lengths": list(source.rows) if count > 1 else None,
            "dataset_name": name,
        }
    info = {
        "builder_name": name,
        "config_name": CONFIG,
        "dataset_name": name,
        "features": {TEXT: {"dtype": "string", "_type": "Value"}},
        "splits": splits,
        "version": {"version_str": VERSION, "major": 0, "minor": 0, "patch": 0},
    }
    arrow.write_text(folder / arrow.INFO, json.dumps(info))


def _copy(source: Path, target: Path) -> None:
    """The text column of a Parquet file as an Arrow file."""
    import pyarrow
    from pyarrow import parquet

    described = {"info": {"features": {TEXT: {"dtype": "string", "_type": "Value"}}}}
    schema = pyarrow.schema(
        [(TEXT, pyarrow.string())], metadata={b"huggingface": json.dumps(described).encode()}
    )

    def batches() -> Iterator[pyarrow.RecordBatch]:
        with parquet.ParquetFile(source) as file:
            for batch in file.iter_batches(columns=[TEXT], batch_size=1000):
                yield pyarrow.record_batch([batch.column(0).cast(pyarrow.string())], schema)

    arrow.write_stream(target, schema, batches())
