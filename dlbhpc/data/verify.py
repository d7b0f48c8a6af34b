"""Compare prepared data, and the caches made of it, with what was recorded: every byte is read."""

from __future__ import annotations

import itertools
from pathlib import Path

from dlbhpc.data import arrow
from dlbhpc.data.bridge import COLUMNS, RECORD, blocks, check_columns, check_samples
from dlbhpc.data.manifest import ManifestError, read_manifest, verify_processed
from dlbhpc.layout import Layout
from dlbhpc.recipe import Dataset


def verify_dataset(dataset: Dataset, layout: Layout) -> str:
    """Verify prepared data and every upstream's cache of it; returns a sentence about it.

    Raises:
        ManifestError: a file, a column, a block, a mask or a number of blocks is not what the
            manifest says.
    """
    manifest = read_manifest(layout.manifest(dataset.name), dataset.name, dataset.sequence_length)
    processed = layout.processed(dataset.processed)
    # The manifest may describe none; the bundled dataset has no aliases.
    splits = tuple(dict.fromkeys(dataset.aliases.values())) or ("train", "validation")
    if dataset.aliases:  # the bundled dataset has masks of its own, and no cache
        for split in splits:
            _verify_split(processed / split, dataset, manifest.split(split).samples)
    verify_processed(manifest, processed, splits)
    caches = [
        path.parent
        for path in sorted((layout.data / "training_cache").glob(f"*/{dataset.name}/{RECORD}"))
    ]
    for cache in caches:
        for alias, split in dataset.aliases.items():
            _verify_cache(cache / alias, processed / split, dataset.sequence_length)
    names = ", ".join(cache.parent.name for cache in caches) or "none"
    return f"{dataset.name}: {processed} matches its manifest; caches of it: {names}"


def _verify_split(folder: Path, dataset: Dataset, samples: int) -> None:
    import pyarrow.compute

    rows = 0
    for path in arrow.data_files(folder):
        check_columns(path)
        for batch in arrow.read_file(path):
            values = blocks(batch, dataset.sequence_length, path)
            limits = pyarrow.compute.min_max(values).as_py()
            # A tokenizer without a padding token is given one behind its vocabulary.
            if not 0 <= limits["min"] <= limits["max"] <= dataset.base_vocab:
                raise ManifestError(
                    f"{path} holds the token {limits['max']}, the vocabulary of {dataset.name} has "
                    f"{dataset.base_vocab}: prepare the data again"
                )
            rows += batch.num_rows
    check_samples(folder, rows, samples)


def _verify_cache(folder: Path, source: Path, length: int) -> None:
    """Every block of a cache is that of the prepared data, its mask is all ones."""
    import pyarrow.compute

    wrong = f"remove {folder.parent}, and it is written again"
    pairs = itertools.zip_longest(arrow.data_files(folder), arrow.data_files(source))
    for path, original in pairs:
        if path is None or original is None:
            raise ManifestError(f"{folder} has not as many files as {source}: {wrong}")
        if (names := arrow.file_schema(path).names) != list(COLUMNS):
            raise ManifestError(f"{path} has the columns {', '.join(names)}: {wrong}")
        batches = itertools.zip_longest(arrow.read_file(path), arrow.read_file(original))
        for batch, expected in batches:
            if batch is None or expected is None or batch.num_rows != expected.num_rows:
                raise ManifestError(f"{path} has not as many blocks as {original}: {wrong}")
            if not blocks(batch, length, path).equals(blocks(expected, length, original)):
                raise ManifestError(f"{path} has other blocks than {original}: {wrong}")
            mask = batch.column("attention_mask").flatten()
            ones = pyarrow.compute.sum(pyarrow.compute.equal(mask, 1)).as_py()
            if ones != batch.num_rows * length:
                raise ManifestError(f"{path} has an attention mask that is not all ones: {wrong}")
