"""How much faster the data bridge is than writing the same cache row by row in Python, in one run.

Both read the same prepared blocks and write an upstream's cache of them with attention masks of
ones: the bridge hands record batches on, the other maps each row with `datasets`. The rounds
alternate, so that a slow moment of the machine meets both; the median of their ratios is printed.
The bridge's time has the comparison with the manifest's digest in it.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

ROUNDS, BLOCKS, LENGTH = 3, 20_000, 1024


def prepare(layout: Any, dataset: Any) -> None:
    """Blocks of random tokens in the form that `data prepare` writes, and their manifest."""
    import numpy
    import pyarrow

    from dlbhpc.data import arrow
    from dlbhpc.data.manifest import digest_files
    from dlbhpc.data.prepare import COLUMNS

    random = numpy.random.default_rng(0)
    splits = {}
    for split in ("train", "validation"):
        folder = layout.processed(dataset.processed) / split
        folder.mkdir(parents=True)
        batches = []
        for _ in range(BLOCKS // 1000):
            tokens = random.integers(0, dataset.base_vocab, 1000 * LENGTH, numpy.int32)
            lists = arrow.lists(pyarrow.array(tokens), 1000, LENGTH)
            batches.append(pyarrow.record_batch([lists], arrow.schema(COLUMNS)))
        name = arrow.file_name(0, 1)
        arrow.write_file(folder / name, COLUMNS, batches)
        arrow.finish_split(folder, COLUMNS, [name], split)
        splits[split] = {"samples": BLOCKS, "sha256": digest_files(folder, "*.arrow")}
    manifest = layout.manifest(dataset.name)
    manifest.parent.mkdir(parents=True)
    content = {"dataset": dataset.name, "sequence_length": LENGTH, "splits": splits}
    manifest.write_text(json.dumps(content))


def row_by_row(layout: Any, dataset: Any, target: Path) -> None:
    import datasets

    datasets.disable_caching()
    for alias, split in dataset.aliases.items():
        rows = datasets.load_from_disk(str(layout.processed(dataset.processed) / split))
        masked = rows.map(lambda row: {"attention_mask": [1] * len(row["input_ids"])})
        masked.save_to_disk(str(target / alias))


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    from datasets.utils.logging import disable_progress_bar

    from dlbhpc.data.bridge import ensure_bridge
    from dlbhpc.layout import Layout
    from dlbhpc.recipe import list_datasets

    disable_progress_bar()
    dataset = next(dataset for dataset in list_datasets() if dataset.name == "owt")
    with tempfile.TemporaryDirectory() as folder:
        layout = Layout.at(Path(folder))
        prepare(layout, dataset)
        ratios, current = [], []
        for round_ in range(ROUNDS):
            # Every round writes a cache of its own.
            name = f"upstream-{round_}"
            bridge = seconds(lambda n=name: ensure_bridge(n, dataset, layout, lambda _: None))
            current.append(
                seconds(lambda n=name: ensure_bridge(n, dataset, layout, lambda _: None))
            )
            rows = seconds(lambda n=name: row_by_row(layout, dataset, Path(folder, n)))
            ratios.append(rows / bridge)
    print(f"{2 * BLOCKS:,} blocks of {LENGTH} tokens")
    print(f"bridge             {statistics.median(ratios):.0f} x faster than row by row")
    print(f"a current cache is recognised in {1000 * statistics.median(current):.0f} ms")


if __name__ == "__main__":
    main()
