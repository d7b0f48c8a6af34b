"""The raw text where `datasets` finds it offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.data import ManifestError, text_cache
from dlbhpc.data.lock import LockLost
from dlbhpc.data.raw import Documents, open_documents
from dlbhpc.data.text_cache import ensure_text_cache
from tests.data.conftest import Small

_LOAD = """
import json, sys
import datasets
loaded = datasets.load_dataset("lm1b", cache_dir=sys.argv[1])
print(json.dumps({split: rows["text"][:] for split, rows in loaded.items()}))
"""


def not_again(_: str) -> None:
    raise AssertionError("the text was written again")


def ensure(small: Small, say: Callable[[str], None] = lambda _: None) -> Path:
    return ensure_text_cache("lm1b", small.pins, small.layout, say)


def split_in_two(small: Small) -> Small:
    """The same text of the train split in two Parquet files, as the real ones are several."""
    from pyarrow import parquet

    (path,) = open_documents(small.pins, small.layout)["train"].files
    table = parquet.read_table(path)
    parquet.write_table(table.slice(0, 4000), path.with_name("train-0.parquet"))
    parquet.write_table(table.slice(4000), path.with_name("train-1.parquet"))
    files = dict(small.pins.files)
    files["train"] = replace(files["train"], pattern="plain_text/train-*.parquet")
    return replace(small, pins=replace(small.pins, files=files))


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_datasets_finds_it_offline_by_name(small: Small, tmp_path: Path, several: bool) -> None:
    pytest.importorskip("datasets")
    small = split_in_two(small) if several else small
    ensure(small)
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(small.layout.hf_datasets_cache)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    documents: dict[str, Documents] = open_documents(small.pins, small.layout)
    assert json.loads(done.stdout) == {
        split: list(source.read(0, sum(source.rows))) for split, source in documents.items()
    }


def test_what_is_there_is_left_alone_and_needs_no_raw_data(small: Small) -> None:
    folder = ensure(small)
    for path in (small.layout.hf_home / "hub").rglob("*.parquet"):
        path.unlink()
    assert ensure(small, not_again) == folder


def test_another_text_in_its_place_is_refused(small: Small) -> None:
    info = ensure(small) / "dataset_info.json"
    content = json.loads(info.read_text())
    content["splits"]["test"]["num_examples"] -= 1
    info.write_text(json.dumps(content))
    with pytest.raises(ManifestError, match=r"'test': 864.*'test': 865.*are pinned"):
        ensure(small)
    info.write_text("{")
    with pytest.raises(ManifestError, match=r"dataset_info\.json is damaged"):
        ensure(small)


def test_what_a_killed_process_left_is_replaced(small: Small) -> None:
    folder = ensure(small)
    folder.rename(folder.with_name(f".{folder.name}.building-0123"))
    assert ensure(small) == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_process_that_lost_its_lock_does_not_disturb_the_next(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, copied = text_cache._copy, []

    def asleep_after_the_first(source: Path, target: Path) -> None:
        copy(source, target)
        copied.append(target)
        if len(copied) == 1:
            # A process on another host has waited for long enough.
            next(small.layout.hf_datasets_cache.rglob(".*.lock")).unlink()
            ensure(small)

    monkeypatch.setattr(text_cache, "_copy", asleep_after_the_first)
    with pytest.raises(LockLost):
        ensure(small)
    folder = ensure(small, not_again)
    assert sorted(path.name for path in folder.iterdir()) == [
        "dataset_info.json",
        "lm1b-test.arrow",
        "lm1b-train.arrow",
    ]
    assert list(folder.parent.iterdir()) == [folder]
