"""The pinned raw text of a dataset: which documents make a split, and how they are read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dlbhpc.data.manifest import ManifestError
from dlbhpc.layout import CONF, Layout
from dlbhpc.recipe import Snapshot, conf
from dlbhpc.records import from_plain

TEXT = "text"
"""The column that holds the documents."""
_WEIGHT_FILES = ("config.json", "model.safetensors")
_TOKENIZER_FILES = ("*.json", "vocab.txt", "merges.txt")


@dataclass(frozen=True)
class RawFiles:
    """The Parquet files of one published split, and how many documents they hold together."""

    pattern: str
    documents: int


@dataclass(frozen=True)
class RawSplit:
    """One of our splits: the documents ``start`` to ``stop`` (exclusive) of published files."""

    files: str
    start: int
    stop: int


@dataclass(frozen=True)
class RawPins:
    """What a dataset is prepared from: ``dlbhpc/conf/raw/DATASET.yaml``.

    ``boundary`` is the token that ends each document and encloses each block; ``padding`` is added
    to the tokenizer where it has none. ``documents_per_file`` decides what one file of the
    processed data holds, and so the unit of work that is done again after an interruption.
    """

    repository: str
    revision: str
    files: Mapping[str, RawFiles]
    splits: Mapping[str, RawSplit]
    detokenizer: str | None
    boundary: str
    padding: str
    documents_per_file: int


def read_pins(dataset: str, conf_dir: Path = CONF) -> RawPins:
    """The pins of ``dataset``. Raises DlbhpcError for a file that is missing or damaged."""
    path = conf_dir / "raw" / f"{dataset}.yaml"
    return from_plain(RawPins, conf.load(path), str(path))


@dataclass(frozen=True)
class Documents:
    """The documents of a number of Parquet files, in order; ``rows`` counts them file by file."""

    files: tuple[Path, ...]
    rows: tuple[int, ...]

    def read(self, start: int, stop: int) -> Iterator[str]:
        """Documents ``start`` to ``stop`` (exclusive); a row group or so is in memory at a time."""
        from pyarrow import parquet

        first = 0
        for path, rows in zip(self.files, self.rows, strict=True):
            if first < stop and start < first + rows:
                with parquet.ParquetFile(path) as file:
                    yield from _rows(file, max(0, start - first), min(rows, stop - first))
            first += rows


def _rows(file: object, start: int, stop: int) -> Iterator[str]:
    """Rows of one open ``parquet.ParquetFile``; row groups outside are not read."""
    groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]  # type: ignore[attr-defined]
    ends = list(itertools.accumulate(groups))
    wanted = [i for i, end in enumerate(ends) if end > start and end - groups[i] < stop]
    if not wanted:
        return
    row = ends[wanted[0]] - groups[wanted[0]]
    for batch in file.iter_batches(row_groups=wanted, columns=[TEXT], batch_size=1000):  # type: ignore[attr-defined]
        texts = batch.column(0)
        yield from texts.slice(max(0, start - row), max(0, stop - max(start, row))).to_pylist()
        row += len(texts)


def open_documents(pins: RawPins, layout: Layout) -> dict[str, Documents]:
    """The pinned documents by published split: from the raw cache, else fetched into it.

    Raises:
        ManifestError: they are not there, cannot be fetched, or are not as many as pinned.
    """
    folder = _dataset_folder(pins, layout)
    found = {name: _open(folder, files.pattern) for name, files in pins.files.items()}
    if any(sum(found[name].rows) != files.documents for name, files in pins.files.items()):
        patterns = tuple(files.pattern for files in pins.files.values())
        _fetch(pins.repository, pins.revision, layout, patterns, kind="dataset")
        found = {name: _open(folder, files.pattern) for name, files in pins.files.items()}
    for name, files in pins.files.items():
        if sum(found[name].rows) != files.documents:
            raise ManifestError(
                f"{folder / files.pattern} holds {sum(found[name].rows):,} documents of {name}, "
                f"{files.documents:,} are pinned: remove {folder} and fetch it again"
            )
    return found


def open_tokenizer(pinned: Snapshot, layout: Layout) -> Path:
    """The folder of the pinned tokenizer: from the raw cache, else fetched into it.

    Raises ManifestError when it is not there and cannot be fetched.
    """
    folder = layout.snapshot(pinned.repository, pinned.revision)
    # Without config.json transformers does not know the class, and takes one that has no special
    # tokens.
    needed = [folder / "tokenizer.json", folder / "config.json"]
    if not all(path.is_file() for path in needed):
        _fetch(pinned.repository, pinned.revision, layout, _TOKENIZER_FILES, kind="model")
    for path in needed:
        if not path.is_file():
            raise ManifestError(f"the tokenizer {folder} lacks {path.name}: fetch it again")
    # One upstream asks for its tokenizer by name, which finds what refs/main names.
    main = folder.parents[1] / "refs" / "main"
    if not main.exists():
        main.parent.mkdir(parents=True, exist_ok=True)
        main.write_text(pinned.revision, encoding="utf-8")
    return folder


def fetch_weights(pinned: Snapshot, layout: Layout) -> Path:
    """Fetch published weights; the hub's cache records the commit that a branch resolved to.

    Returns the folder of that commit. Raises ManifestError when they cannot be fetched.
    """
    return _fetch(pinned.repository, pinned.revision, layout, _WEIGHT_FILES, kind="model")


def _dataset_folder(pins: RawPins, layout: Layout) -> Path:
    folder = "datasets--" + pins.repository.replace("/", "--")
    return layout.hf_home / "hub" / folder / "snapshots" / pins.revision


def _open(folder: Path, pattern: str) -> Documents:
    from pyarrow import parquet

    files = tuple(sorted(folder.glob(pattern)))
    try:
        return Documents(files, tuple(parquet.read_metadata(path).num_rows for path in files))
    except (OSError, ValueError) as error:  # pyarrow's own errors are among these
        raise ManifestError(f"the raw data in {folder} cannot be read: {error}") from error


def _fetch(
    repository: str, revision: str, layout: Layout, patterns: tuple[str, ...], *, kind: str
) -> Path:
    from huggingface_hub import snapshot_download

    print(f"fetching {kind} {repository} at {revision}", flush=True)
    try:
        fetched = snapshot_download(
            repository,
            repo_type=kind,
            revision=revision,
            cache_dir=layout.hf_home / "hub",
            allow_patterns=list(patterns),
        )
        return Path(fetched)
    except Exception as error:  # no network, no such revision, a full disk: the hub's own family
        folder = f"{kind}s--" + repository.replace("/", "--")
        raise ManifestError(
            f"{kind} {repository} at {revision} is not whole under {layout.hf_home / 'hub'}, and "
            f"cannot be fetched ({type(error).__name__}): run this where the hub can be reached, "
            f"or copy the folder {folder} there from another machine"
        ) from error
