"""The data bridge: prepared data as the cache that an upstream looks for."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from dlbhpc.data import ManifestError, arrow, bridge
from dlbhpc.data.bridge import COLUMNS, RECORD, ensure_bridge
from dlbhpc.data.lock import LockLost
from dlbhpc.data.manifest import digest_files
from dlbhpc.data.verify import verify_dataset
from dlbhpc.errors import DlbhpcError
from tests.data.conftest import Small

TRAIN, TEST = "lm1b_train_bs32_wrapped.dat", "lm1b_test_bs32_wrapped.dat"
Change = Callable[[pyarrow.Table], pyarrow.Table]


def build(small: Small, upstream: str = "mdlm") -> Path:
    return ensure_bridge(upstream, small.dataset, small.layout, lambda _: None)


def not_again(_: str) -> None:
    raise AssertionError("the cache was written again")


def column(folder: Path, name: str) -> list[list[int]]:
    files = arrow.data_files(folder)
    return [row for f in files for batch in arrow.read_file(f) for row in batch[name].to_pylist()]


def contents(cache: Path) -> dict[str, bytes]:
    """Every file of a cache but its record, which holds times."""
    files = (path for path in cache.rglob("*") if path.is_file() and path.name != RECORD)
    return {str(path.relative_to(cache)): path.read_bytes() for path in files}


def rewrite(path: Path, change: Change) -> None:
    """Replace an Arrow file by a changed one; the old one is still mapped."""
    table = change(pyarrow.Table.from_batches(list(arrow.read_file(path))))
    changed = path.with_name("changed")
    with pyarrow.ipc.new_stream(str(changed), table.schema) as writer:
        writer.write_table(table)
    changed.replace(path)


def told(small: Small) -> None:
    """Let the manifest say what the files are now: only a look into them can find the fault."""
    content = json.loads(small.manifest.read_text())
    for split in content["splits"]:
        content["splits"][split]["sha256"] = digest_files(small.processed / split, "*.arrow")
    small.manifest.write_text(json.dumps(content))


def test_the_cache_holds_the_blocks_and_masks_of_ones(small: Small) -> None:
    cache = build(small)
    assert sorted(path.name for path in cache.iterdir()) == [RECORD, TEST, TRAIN]
    for alias, split in small.dataset.aliases.items():
        ids = column(cache / alias, "input_ids")
        assert ids == column(small.processed / split, "input_ids")
        assert column(cache / alias, "attention_mask") == [[1] * 32] * len(ids)
    assert "caches of it: mdlm" in verify_dataset(small.dataset, small.layout)


def test_datasets_loads_it_as_an_upstream_does(small: Small) -> None:
    datasets, torch = pytest.importorskip("datasets"), pytest.importorskip("torch")
    loaded = datasets.load_from_disk(str(build(small) / TRAIN)).with_format("torch")
    row = loaded[3]
    assert row["input_ids"].dtype == torch.int64
    assert row["input_ids"].tolist() == column(small.processed / "train", "input_ids")[3]
    assert row["attention_mask"].tolist() == [1] * 32
    assert loaded[[0, 1]]["input_ids"].shape == (2, 32)


def test_old_datasets_can_read_its_description(small: Small) -> None:
    folder = build(small) / TRAIN
    info = json.loads((folder / "dataset_info.json").read_text())["features"]
    (path,) = arrow.data_files(folder)
    inside = json.loads(arrow.file_schema(path).metadata[b"huggingface"])["info"]["features"]
    assert info == inside == arrow.features(COLUMNS)
    assert {feature["_type"] for feature in info.values()} == {"Sequence"}


def test_data_described_in_the_words_of_new_datasets_is_bridged_for_old_ones(small: Small) -> None:
    described = {"info": {"features": {"input_ids": {"_type": "List"}}}}
    metadata = {b"huggingface": json.dumps(described).encode()}
    for split in ("train", "validation"):
        for path in arrow.data_files(small.processed / split):
            rewrite(path, lambda table: table.replace_schema_metadata(metadata))
    told(small)
    (path,) = arrow.data_files(build(small) / TRAIN)
    assert b'"List"' not in arrow.file_schema(path).metadata[b"huggingface"]


def test_values_are_not_copied(small: Small) -> None:
    (path,) = arrow.data_files(small.processed / "train")
    batch = next(arrow.read_file(path))
    values = bridge.blocks(batch, 32, path)
    assert values.buffers()[1].address == batch.column("input_ids").values.buffers()[1].address


def test_a_current_cache_is_recognised_without_reading_it(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = build(small)

    def refuse(*_: Any) -> Any:
        raise AssertionError("data was read")

    monkeypatch.setattr(arrow, "read_file", refuse)
    monkeypatch.setattr(bridge, "verify_processed", refuse)
    shutil.rmtree(small.processed)
    assert ensure_bridge("mdlm", small.dataset, small.layout, not_again) == cache


def flip(path: Path) -> None:
    """Change one byte, and not the size; the old file may still be mapped."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)


def test_a_cache_whose_files_have_other_times_alone_is_left_in_its_place(small: Small) -> None:
    cache = build(small)
    files = {path: path.stat().st_ino for path in cache.rglob("*") if path.name != RECORD}
    os.utime(cache / TRAIN / "data-00000-of-00001.arrow", (1, 1))
    shutil.rmtree(small.processed)  # nothing of it is needed
    said: list[str] = []
    ensure_bridge("mdlm", small.dataset, small.layout, said.append)
    assert [text for text in said if "comparing" not in text] == []
    assert {path: path.stat().st_ino for path in cache.rglob("*") if path.name != RECORD} == files
    ensure_bridge("mdlm", small.dataset, small.layout, not_again)


def test_a_copy_of_a_cache_is_taken_as_it_is(small: Small) -> None:
    cache = build(small)
    cache.rename(cache.with_name("original"))
    shutil.copytree(cache.with_name("original"), cache, copy_function=shutil.copyfile)
    ensure_bridge("mdlm", small.dataset, small.layout, lambda _: None)
    assert sorted(path.name for path in cache.parent.iterdir()) == ["lm1b", "original"]
    ensure_bridge("mdlm", small.dataset, small.layout, not_again)


def test_a_file_that_is_not_ours_beside_the_data_changes_nothing(small: Small) -> None:
    cache = build(small)
    (cache / TRAIN / "cache-0123.arrow").write_bytes(b"an upstream's own")
    ensure_bridge("mdlm", small.dataset, small.layout, not_again)


@pytest.mark.parametrize(
    "damage",
    [
        lambda cache: (cache / TRAIN / "state.json").unlink(),
        lambda cache: (cache / TRAIN / "dataset_info.json").write_text("{}"),
        lambda cache: (cache / TEST / "data-00000-of-00001.arrow").write_bytes(b"torn"),
        lambda cache: shutil.rmtree(cache / TEST),
        lambda cache: flip(cache / TRAIN / "data-00000-of-00001.arrow"),
    ],
    ids=["missing", "changed", "torn", "split missing", "flipped"],
)
def test_a_torn_cache_is_written_again(small: Small, damage: Callable[[Path], None]) -> None:
    cache = build(small)
    whole = contents(cache)
    damage(cache)
    damaged = contents(cache)
    said: list[str] = []
    ensure_bridge("mdlm", small.dataset, small.layout, said.append)
    assert "writing the data" in " ".join(said)
    assert contents(cache) == whole
    # A run may be reading it.
    assert contents(cache.with_name("lm1b.outdated")) == damaged
    assert f"set aside as {cache}.outdated" in said[-1]
    ensure_bridge("mdlm", small.dataset, small.layout, not_again)


def test_an_outdated_cache_is_written_again(small: Small) -> None:
    cache = build(small)
    content = json.loads(small.manifest.read_text())
    small.manifest.write_text(json.dumps({**content, "note": "prepared again"}))
    said: list[str] = []
    ensure_bridge("mdlm", small.dataset, small.layout, said.append)
    assert "writing the data" in said[0]
    assert sorted(path.name for path in cache.parent.iterdir()) == ["lm1b", "lm1b.outdated"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (None, "is not ours"),
        ('{"upstream": "duo", "dataset": "lm1b"}', "is a cache of upstream 'duo', not of 'mdlm'"),
        ('{"upstream": "mdlm", "dataset": "owt"}', "is a cache of dataset 'owt', not of 'lm1b'"),
        ('{"upstr', "cannot be read"),
    ],
)
def test_a_foreign_folder_is_refused_and_left_alone(
    small: Small, record: str | None, message: str
) -> None:
    cache = small.layout.training_cache("mdlm", "lm1b")
    (cache / TRAIN).mkdir(parents=True)
    (cache / TRAIN / "state.json").write_text("theirs")
    if record is not None:
        (cache / RECORD).write_text(record)
    with pytest.raises(ManifestError, match=message):
        build(small)
    assert (cache / TRAIN / "state.json").read_text() == "theirs"


def test_one_block_less_than_the_manifest_says_is_refused(small: Small) -> None:
    (path,) = arrow.data_files(small.processed / "validation")
    rewrite(path, lambda table: table.slice(1))
    with pytest.raises(ManifestError, match="validation is not what"):
        build(small)
    told(small)
    with pytest.raises(ManifestError, match="validation holds 526 blocks, its manifest says 527"):
        build(small)
    with pytest.raises(ManifestError, match="validation holds 526 blocks, its manifest says 527"):
        verify_dataset(small.dataset, small.layout)
    assert not small.layout.training_cache("mdlm", "lm1b").exists()


def tokens(rows: list[list[int] | None]) -> pyarrow.Table:
    return pyarrow.table({"input_ids": pyarrow.array(rows, pyarrow.list_(pyarrow.int32()))})


def with_column(table: pyarrow.Table) -> pyarrow.Table:
    return table.append_column("labels", table.column("input_ids"))


def with_wide_tokens(table: pyarrow.Table) -> pyarrow.Table:
    ids = table.column("input_ids").cast(pyarrow.list_(pyarrow.int64()))
    return table.set_column(0, "input_ids", ids)


def with_short_block(table: pyarrow.Table) -> pyarrow.Table:
    rows = table.column("input_ids").to_pylist()
    rows[1], rows[2] = rows[1] + rows[2][:5], rows[2][5:]
    return tokens(rows)


def with_missing_block(table: pyarrow.Table) -> pyarrow.Table:
    return tokens([*table.column("input_ids").to_pylist()[:-1], None])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_column, r"other columns than input_ids alone \(labels\)"),
        (with_wide_tokens, "input_ids is list<.*int64>, it must be a list of int32"),
        (with_short_block, "not every block has 32 tokens"),
        (with_missing_block, "not every block has 32 tokens"),
    ],
)
def test_data_of_another_shape_is_refused_by_name(
    small: Small, change: Change, message: str
) -> None:
    (path,) = arrow.data_files(small.processed / "train")
    rewrite(path, change)
    told(small)
    with pytest.raises(ManifestError, match=message):
        build(small)
    with pytest.raises(ManifestError, match=message):
        verify_dataset(small.dataset, small.layout)


def test_a_token_outside_the_vocabulary_is_refused(small: Small) -> None:
    def change(table: pyarrow.Table) -> pyarrow.Table:
        rows = table.column("input_ids").to_pylist()
        rows[5][5] = 513
        return tokens(rows)

    (path,) = arrow.data_files(small.processed / "train")
    rewrite(path, change)
    told(small)
    with pytest.raises(ManifestError, match="holds the token 513, the vocabulary of lm1b has 512"):
        verify_dataset(small.dataset, small.layout)


def mask_of(value: float, kind: pyarrow.DataType) -> Change:
    """Gives the fourth block this mask."""

    def change(table: pyarrow.Table) -> pyarrow.Table:
        rows = table.column("attention_mask").to_pylist()
        rows[3] = [value] * 32
        return table.set_column(1, "attention_mask", pyarrow.array(rows, pyarrow.list_(kind)))

    return change


@pytest.mark.parametrize(
    "change",
    [mask_of(0, pyarrow.uint8()), mask_of(float("nan"), pyarrow.float32())],
    ids=["zeros", "nan"],
)
def test_a_mask_row_of_zeros_or_nan_is_found(small: Small, change: Change) -> None:
    (path,) = arrow.data_files(build(small) / TEST)
    rewrite(path, change)
    with pytest.raises(ManifestError, match=r"test_bs32.*attention mask that is not all ones"):
        verify_dataset(small.dataset, small.layout)


def test_other_blocks_in_a_cache_are_found(small: Small) -> None:
    (path,) = arrow.data_files(build(small) / TEST)
    order = [1, 0, *range(2, 527)]
    rewrite(path, lambda table: table.take(order).combine_chunks())
    with pytest.raises(ManifestError, match="has other blocks than"):
        verify_dataset(small.dataset, small.layout)


def test_unprepared_data_names_the_command_that_prepares_it(small: Small) -> None:
    small.manifest.unlink()
    with pytest.raises(ManifestError, match="python -m dlbhpc data prepare lm1b"):
        build(small)


def test_data_of_another_length_is_refused(small: Small) -> None:
    other = replace(small.dataset, sequence_length=64)
    with pytest.raises(ManifestError, match="sequence_length 32, the recipe needs 64"):
        ensure_bridge("mdlm", other, small.layout, lambda _: None)


def test_what_a_killed_process_left_is_removed(small: Small) -> None:
    cache = small.layout.training_cache("mdlm", "lm1b")
    left = cache.with_name(".lm1b.building-0123")
    left.mkdir(parents=True)
    (left / "half.arrow").write_bytes(b"half")
    build(small)
    assert list(cache.parent.iterdir()) == [cache]


def test_a_symlink_to_nothing_in_the_place_of_a_cache_is_refused_by_name(small: Small) -> None:
    cache = small.layout.training_cache("mdlm", "lm1b")
    cache.parent.mkdir(parents=True)
    cache.symlink_to(small.layout.root / "unmounted")
    with pytest.raises(DlbhpcError, match=r"mdlm/lm1b is a symlink to .*unmounted"):
        build(small)
    assert list(cache.parent.iterdir()) == [cache]


def test_a_state_that_leads_out_of_its_folder_is_refused(small: Small) -> None:
    state = small.processed / "train" / "state.json"
    content = json.loads(state.read_text())
    content["_data_files"] = [{"filename": "../validation/data-00000-of-00001.arrow"}]
    state.write_text(json.dumps(content))
    with pytest.raises(ManifestError, match="no file of its folder"):
        build(small)


def test_an_owner_of_the_lock_that_woke_up_too_late_does_not_disturb_the_next(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, begun = bridge.bridge_split, []

    def asleep_after_the_first(*arguments: Any, **named: Any) -> Any:
        names = real(*arguments, **named)
        begun.append(names)
        if len(begun) == 1:
            # A process on another host has waited for long enough.
            monkeypatch.setattr(bridge, "bridge_split", real)
            (small.layout.data / "training_cache" / "mdlm" / ".lm1b.lock").unlink()
            build(small)
            monkeypatch.setattr(bridge, "bridge_split", asleep_after_the_first)
        return names

    monkeypatch.setattr(bridge, "bridge_split", asleep_after_the_first)
    with pytest.raises(LockLost, match="run the command again"):
        build(small)
    assert "caches of it: mdlm" in verify_dataset(small.dataset, small.layout)
    assert ensure_bridge("mdlm", small.dataset, small.layout, not_again).is_dir()


def _build_in_a_process(small: Small, barrier: Any, written: Any) -> None:
    barrier.wait()
    ensure_bridge("mdlm", small.dataset, small.layout, written.put)


def test_two_launches_at_once_write_it_once(small: Small) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, written = context.Barrier(2), context.Queue()
    both = [
        context.Process(target=_build_in_a_process, args=(small, barrier, written))
        for _ in range(2)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert "writing the data" in written.get(timeout=60)
    assert written.empty()
    assert "caches of it: mdlm" in verify_dataset(small.dataset, small.layout)
