"""Preparing a pinned dataset from its raw data."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.data import ManifestError, arrow, prepare, read_manifest
from dlbhpc.data.lock import LockLost
from dlbhpc.data.prepare import prepare_pinned
from dlbhpc.data.raw import Documents, open_documents, open_tokenizer
from dlbhpc.data.verify import verify_dataset
from dlbhpc.layout import CHECKOUT, Layout
from dlbhpc.recipe import Snapshot
from tests.data.conftest import Small, small_dataset

Network = Callable[[], list[str]]


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def unprepared(small: Small) -> Small:
    """With the raw data alone, to be cut into many files."""
    shutil.rmtree(small.processed)
    small.manifest.unlink()
    return replace(small, pins=replace(small.pins, documents_per_file=1000))


def blocks(small: Small, split: str) -> list[list[int]]:
    return [
        block
        for path in arrow.data_files(small.processed / split)
        for batch in arrow.read_file(path)
        for block in batch.column("input_ids").to_pylist()
    ]


def test_the_manifest_describes_what_is_there(prepared_small: Small) -> None:
    dataset = prepared_small.dataset
    manifest = read_manifest(prepared_small.manifest, "lm1b", dataset.sequence_length)
    for split in ("train", "validation"):
        rows = blocks(prepared_small, split)
        assert manifest.split(split).samples == len(rows) > 200
        assert {len(row) for row in rows} == {dataset.sequence_length}
        assert max(map(max, rows)) < dataset.base_vocab
    assert manifest.content["tokenizer_revision"] == "trial"
    assert "matches its manifest" in verify_dataset(dataset, prepared_small.layout)


def test_datasets_reads_it(prepared_small: Small) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.load_from_disk(str(prepared_small.processed))
    assert list(data) == ["train", "validation"]
    assert data["validation"]["input_ids"][:] == blocks(prepared_small, "validation")


def test_blocks_depend_on_neither_files_nor_processes(small: Small) -> None:
    before = {split: blocks(small, split) for split in ("train", "validation")}
    small = unprepared(small)
    prepare_pinned(small.dataset, small.pins, small.layout, processes=2)
    assert len(arrow.data_files(small.processed / "train")) > 5
    assert {split: blocks(small, split) for split in ("train", "validation")} == before


def test_prepared_data_is_left_alone(
    prepared_small: Small, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in prepared_small.layout.data.rglob("*.*")}
    prepare_pinned(prepared_small.dataset, prepared_small.pins, prepared_small.layout)
    assert "already prepared" in capsys.readouterr().out
    after = {path: path.stat().st_mtime_ns for path in prepared_small.layout.data.rglob("*.*")}
    assert after == before


def test_an_interrupted_preparation_goes_on(
    small: Small, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = unprepared(small)
    build, built = prepare.build_part, []

    def stop_after_three(part: prepare.Part) -> prepare.Part:
        if len(built) == 3:
            raise KeyboardInterrupt
        built.append(part.path)
        return build(part)

    monkeypatch.setattr(prepare, "build_part", stop_after_three)
    with pytest.raises(KeyboardInterrupt):
        prepare_pinned(small.dataset, small.pins, small.layout, processes=1)
    assert not small.processed.exists()
    assert not small.manifest.exists()

    def not_again(part: prepare.Part) -> prepare.Part:
        assert part.path not in built
        return build(part)

    monkeypatch.setattr(prepare, "build_part", not_again)
    prepare_pinned(small.dataset, small.pins, small.layout, processes=1)
    assert "goes on, 3 of" in capsys.readouterr().out
    interrupted = contents(small.processed)

    small.manifest.unlink()
    monkeypatch.setattr(prepare, "build_part", build)
    prepare_pinned(small.dataset, small.pins, small.layout, processes=1)
    assert contents(small.processed) == interrupted


def test_a_preparation_that_lost_its_lock_does_not_disturb_the_next(
    small: Small, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = unprepared(small)
    build, built = prepare.build_part, []

    def asleep_after_two(part: prepare.Part) -> prepare.Part:
        built.append(build(part))
        if len(built) == 2:
            # A process on another host has waited for long enough.
            (stray := part.path.with_name(".half.arrow.1")).write_bytes(b"half")
            small.processed.with_name(f".{small.processed.name}.lock").unlink()
            monkeypatch.setattr(prepare, "build_part", build)
            prepare_pinned(small.dataset, small.pins, small.layout, processes=1)
            assert not stray.exists()
        return part

    monkeypatch.setattr(prepare, "build_part", asleep_after_two)
    with pytest.raises(LockLost, match="run the command again"):
        prepare_pinned(small.dataset, small.pins, small.layout, processes=1)
    assert "goes on, 2 of" in capsys.readouterr().out
    assert "matches its manifest" in verify_dataset(small.dataset, small.layout)
    assert [path.name for path in small.processed.parent.iterdir()] == [small.processed.name]
    assert not list(small.processed.glob("*/.*"))


def test_other_rules_do_not_go_on_with_the_parts_of_the_old_ones(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = unprepared(small)
    build = prepare.build_part

    def stop(part: prepare.Part) -> prepare.Part:
        build(part)
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare, "build_part", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare_pinned(small.dataset, small.pins, small.layout, processes=1)
    monkeypatch.setattr(prepare, "build_part", build)
    other = replace(small.pins, boundary="[SEP]")
    prepare_pinned(small.dataset, other, small.layout, processes=1)
    assert {row[0] for row in blocks(small, "train")} == {102}


@pytest.mark.slow
def test_killed_with_all_its_processes_it_leaves_nothing_that_looks_prepared(
    small: Small,
) -> None:
    small = unprepared(small)
    script = small.layout.root / "go.py"
    script.write_text(
        "import pathlib, sys\n"
        "from dataclasses import replace\n"
        "from dlbhpc.data.prepare import prepare_pinned\n"
        "from dlbhpc.data.trial import make_trial_raw\n"
        "from dlbhpc.layout import Layout\n"
        "from tests.data.conftest import small_dataset\n"
        "if __name__ == '__main__':\n"
        "    layout = Layout.at(pathlib.Path(sys.argv[1])).of_trials()\n"
        "    dataset = small_dataset('lm1b')\n"
        "    pins = replace(make_trial_raw(dataset, layout), documents_per_file=1000)\n"
        "    prepare_pinned(dataset, pins, layout, 2)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script), str(small.layout.root)],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )
    partial = f".{small.processed.name}.building-*"
    while not any(small.processed.parent.glob(f"{partial}/*/*.arrow")) and process.poll() is None:
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not small.manifest.exists()
    # Its helpers leave as well, and the next preparation takes the lock of the dead one over.
    prepare_pinned(small.dataset, small.pins, small.layout, processes=1)
    assert "matches its manifest" in verify_dataset(small.dataset, small.layout)
    left = {path.name for path in small.processed.parent.iterdir()}
    assert left == {small.processed.name}


def test_prepared_data_that_lost_its_manifest_is_set_aside(small: Small) -> None:
    for expected in ("without-manifest", "without-manifest-2"):
        small.manifest.unlink()
        prepare_pinned(small.dataset, small.pins, small.layout, processes=1)
        aside = small.processed.with_name(f"{small.processed.name}.{expected}")
        assert (aside / "dataset_dict.json").is_file(), "days of work may be in it"
    assert "matches its manifest" in verify_dataset(small.dataset, small.layout)


def test_documents_are_read_across_files_and_row_groups(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    paths, rows = [], []
    for number, count in enumerate((5, 0, 12)):
        path = tmp_path / f"{number}.parquet"
        texts = [f"{number}/{i}" for i in range(count)]
        table = pyarrow.table({"text": pyarrow.array(texts, pyarrow.string())})
        parquet.write_table(table, path, row_group_size=4)
        paths.append(path)
        rows.append(count)
    documents = Documents(tuple(paths), tuple(rows))
    everything = [f"{n}/{i}" for n, count in ((0, 5), (2, 12)) for i in range(count)]
    for start in range(18):
        for stop in range(start, 18):
            assert list(documents.read(start, stop)) == everything[start:stop]


def test_raw_data_at_hand_needs_no_network(small: Small, no_network: Network) -> None:
    small = unprepared(small)
    prepare_pinned(small.dataset, small.pins, small.layout, processes=1)
    assert no_network() == []


def test_missing_raw_data_is_a_sentence_that_names_repository_and_folder(
    tmp_path: Path, prepared_small: Small, no_network: Network
) -> None:
    layout = Layout.at(tmp_path).of_trials()
    with pytest.raises(ManifestError, match=r"billion-word-benchmark/lm1b at trial .*not whole"):
        open_documents(prepared_small.pins, layout)
    with pytest.raises(ManifestError, match="model bert-base-uncased at trial"):
        open_tokenizer(Snapshot("bert-base-uncased", "trial"), layout)
    assert no_network() == ["billion-word-benchmark/lm1b", "bert-base-uncased"]


def test_raw_data_with_another_number_of_documents_is_refused(
    prepared_small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: "")
    files = dict(prepared_small.pins.files)
    files["test"] = replace(files["test"], documents=files["test"].documents + 1)
    with pytest.raises(ManifestError, match=r"holds 865 documents of test, 866 are pinned"):
        open_documents(replace(prepared_small.pins, files=files), prepared_small.layout)


def test_a_tokenizer_of_another_size_is_refused(small: Small) -> None:
    small = unprepared(small)
    with pytest.raises(ManifestError, match="has 512 tokens, lm1b needs 511"):
        prepare_pinned(replace(small.dataset, base_vocab=511), small.pins, small.layout)


def test_a_tokenizer_without_its_configuration_is_not_taken(
    small: Small, no_network: Network
) -> None:
    assert small.dataset.tokenizer is not None
    snapshot = open_tokenizer(small.dataset.tokenizer, small.layout)
    (snapshot / "config.json").unlink()
    with pytest.raises(ManifestError, match="bert-base-uncased"):
        open_tokenizer(small.dataset.tokenizer, small.layout)
    assert no_network() == ["bert-base-uncased"]


def test_the_tokenizer_is_found_by_name_too(prepared_small: Small) -> None:
    refs = prepared_small.layout.hf_home / "hub" / "models--bert-base-uncased" / "refs" / "main"
    assert refs.read_text() == "trial"


def test_a_text_too_short_for_a_block_is_refused(small: Small) -> None:
    small = unprepared(small)
    splits = dict(small.pins.splits)
    splits["validation"] = replace(splits["validation"], stop=1)
    with pytest.raises(ManifestError, match="validation has too little text"):
        prepare_pinned(
            replace(small.dataset, sequence_length=512),
            replace(small.pins, splits=splits),
            small.layout,
            processes=1,
        )


def test_the_special_tokens_of_trials_are_where_the_real_ones_are(
    prepared_small: Small, tmp_path: Path
) -> None:
    from tokenizers import Tokenizer

    from dlbhpc.data.trial import make_trial_raw

    snapshot = prepared_small.layout.snapshot("bert-base-uncased", "trial")
    bert = Tokenizer.from_file(str(snapshot / "tokenizer.json"))
    special = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
    assert {token: bert.token_to_id(token) for token in special} == special
    assert bert.get_vocab_size() == 512
    assert bert.encode("the MASK is [MASK]").ids[0] == 101

    layout = Layout.at(tmp_path).of_trials()
    make_trial_raw(small_dataset("owt"), layout)
    gpt2 = Tokenizer.from_file(str(layout.snapshot("gpt2", "trial") / "tokenizer.json"))
    assert gpt2.get_vocab_size() == 512
    assert gpt2.token_to_id("<|endoftext|>") == 511
    text = "any text, ünïcödé too\n"
    assert gpt2.decode(gpt2.encode(text).ids) == text


def test_raw_data_of_trials_is_the_same_every_time(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from dlbhpc.data.trial import make_trial_raw\n"
        "from dlbhpc.layout import Layout\n"
        "from tests.data.conftest import small_dataset\n"
        "layout = Layout.at(pathlib.Path(sys.argv[1])).of_trials()\n"
        "for name in ('lm1b', 'owt'): make_trial_raw(small_dataset(name), layout)\n"
    )
    made = []
    for seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONPATH": str(CHECKOUT),
            "PYTHONHASHSEED": seed,
            "RAYON_NUM_THREADS": seed,
        }
        command = [sys.executable, "-c", code, str(tmp_path / seed)]
        subprocess.run(command, env=environment, check=True)
        made.append(contents(tmp_path / seed))
    assert made[0] == made[1]
    assert json.loads(made[0][next(name for name in made[0] if name.endswith("config.json"))])


@pytest.mark.parametrize("splits", [None, {}, []])
def test_a_manifest_that_describes_no_split_proves_nothing(small: Small, splits: object) -> None:
    """Only the dataset and its length are in every manifest."""
    content = json.loads(small.manifest.read_text())
    small.manifest.write_text(json.dumps({**content, "splits": splits}))
    with pytest.raises(ManifestError, match=r"'splits'|describes no split"):
        verify_dataset(small.dataset, small.layout)
