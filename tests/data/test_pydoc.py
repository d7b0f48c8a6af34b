"""Preparing the bundled dataset."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from datasets import load_from_disk
from tokenizers import Tokenizer

from dlbhpc.data import ManifestError, prepare_pydoc, pydoc, read_manifest
from dlbhpc.data.pydoc import split_topics

PROCESSED = Path("data", "processed", "pydoc-bpe-128")
ROOT = Path(__file__).parents[2]


def contents(root: Path) -> dict[str, bytes]:
    """Every file below ``root``."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project root with prepared data; tests that change it must not use this one."""
    root = tmp_path_factory.mktemp("root")
    prepare_pydoc(root)
    return root


def test_every_tenth_topic_is_held_out() -> None:
    names = [f"t{number:02}" for number in range(25)]
    splits = split_topics({name: name.upper() for name in reversed(names)})
    assert splits["validation"] == ["T00", "T10", "T20"]
    assert splits["train"] == [n.upper() for n in names if n.upper() not in splits["validation"]]


def test_prepared_blocks_are_the_whole_text(prepared: Path) -> None:
    manifest = read_manifest(prepared / "data" / "manifests" / "pydoc.json", "pydoc", 128)
    tokenizer = Tokenizer.from_file(str(prepared / PROCESSED / "tokenizer" / "tokenizer.json"))
    assert manifest.content["vocab_size"] == tokenizer.get_vocab_size() == 1024
    data = load_from_disk(str(prepared / PROCESSED))
    for split, documents in split_topics(topics).items():
        rows = data[split]
        assert len(rows) == manifest.split(split).samples
        assert str(rows.features["attention_mask"].feature.dtype) == "uint8"
        ids, real = (
            chain.from_iterable(rows["input_ids"]),
            chain.from_iterable(rows["attention_mask"]),
        )
        tokens = [token for token, kept in zip(ids, real, strict=True) if kept]
        assert len(tokens) == manifest.content["splits"][split]["tokens"]
        end = tokenizer.token_to_id("[EOS]")
        assert tokens.count(end) == len(documents)
        assert tokenizer.decode(tokens) == "".join(documents)


@pytest.mark.slow
def test_bytes_do_not_depend_on_threads_or_place(prepared: Path, tmp_path: Path) -> None:
    for threads in ("1", "3"):
        code = "import pathlib, sys; from dlbhpc.data import prepare_pydoc as p; "
        code += "p(pathlib.Path(sys.argv[1]))"
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONPATH": str(ROOT)}
        root = tmp_path / threads
        subprocess.run([sys.executable, "-c", code, str(root)], env=environment, check=True)
        assert contents(root) == contents(prepared)


def test_second_preparation_changes_nothing(
    prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in prepared.rglob("*")}
    assert prepare_pydoc(prepared).is_file()
    assert "already prepared" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in prepared.rglob("*")} == before


def copy_of(prepared: Path, target: Path) -> Path:
    for name, content in contents(prepared).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)
    return target


def test_unfinished_preparation_is_done_again(prepared: Path, tmp_path: Path) -> None:
    root = copy_of(prepared, tmp_path)
    (root / "data" / "manifests" / "pydoc.json").unlink()
    (root / PROCESSED / "train" / "state.json").write_text("torn")
    prepare_pydoc(root)
    assert contents(root) == contents(prepared)


@pytest.mark.parametrize("damaged", ["train/data-00000-of-00001.arrow", "tokenizer/tokenizer.json"])
def test_damaged_data_is_refused_and_left_alone(
    prepared: Path, tmp_path: Path, damaged: str
) -> None:
    root = copy_of(prepared, tmp_path)
    (root / PROCESSED / damaged).write_bytes(b"damaged")
    before = contents(root)
    with pytest.raises(ManifestError, match="prepare the data again"):
        prepare_pydoc(root)
    assert contents(root) == before


def test_manifest_of_other_data_is_refused(prepared: Path, tmp_path: Path) -> None:
    root = copy_of(prepared, tmp_path)
    manifest = root / "data" / "manifests" / "pydoc.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "dataset": "lm1b"}))
    with pytest.raises(ManifestError, match="is for dataset 'lm1b'"):
        prepare_pydoc(root)


def test_two_that_prepare_at_once_make_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built = []

    def slowly(folder: Path) -> dict[str, object]:
        built.append(folder)
        (folder / "tokenizer").mkdir(parents=True)
        # The other one has time to come by before this one is done.
        deadline = time.monotonic() + 60
        while "waiting for" not in (said := capsys.readouterr().out) and len(built) == 1:
            assert time.monotonic() < deadline, said
            time.sleep(0.01)
        return {}

    monkeypatch.setattr(pydoc, "_build", slowly)
    monkeypatch.setattr(pydoc, "_verify", lambda manifest, processed: None)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(prepare_pydoc, [tmp_path, tmp_path]))
    assert len(built) == 1
