"""The upstreams' own dataset functions and ours make identical token blocks."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.data import arrow, encode
from dlbhpc.data.prepare import prepare_pinned
from dlbhpc.data.raw import TEXT, RawFiles, RawSplit
from dlbhpc.data.trial import make_trial_raw
from dlbhpc.layout import Layout
from dlbhpc.recipe import Dataset, read_recipe, trial_of
from tests.pinned_upstreams.conftest import CHECKOUTS

DRIVER = Path(__file__).with_name("dataset_driver.py")
MODULES = {
    "mdlm": (".", "dataloader"),
    "duo": (".", "dataloader"),
    "flm": (".", "dataloader"),
    "sdtt": ("src", "sdtt.data.legacy_dataloader"),
    "di4c": ("sdtt/src", "sdtt.data.legacy_dataloader"),
}
HELD_OUT = 40
TEXTS = [
    'He said , " it \'s 3 , 000 dollars " ( or $ 5 . 50 ) , " didn \'t he ? "',
    "",
    "See http : / / www.example.org / a - b / ? q = 1 and https : / / example.org .",
    " ",
    "U.S. shares fell 1.5 % ; Smith ' s [ own ] words : \" Why ! \" ' no ' .",
    "\n",
    "1 / 2 of £ 20 , 000 and A . B . C .",
    "Ünïcödé – 漢字 ﬁ ½ 😀 \u200b\u00a0tab\tand\u0000null",
    "[ SEP ] [PAD] [MASK] <|endoftext|> spelled out",
    "x" * 300,
]
CUTS = {
    "lm1b": [["lm1b", "train"]],
    "owt": [["openwebtext-train", "train"], ["openwebtext-valid", "validation"]],
}


def texts() -> list[str]:
    """More than two groups of documents, none like the one before it."""
    return [f"{TEXTS[i % len(TEXTS)]}{f' No {i} .' if i % 3 else ''}" for i in range(2345)]


def dataset_of_trials(name: str) -> Dataset:
    return trial_of(read_recipe("mdlm", name), {}).dataset


def ours(dataset: Dataset, layout: Layout) -> list[list[list[int]]]:
    """The blocks of each split that our preparation makes of the texts."""
    import pyarrow
    from pyarrow import parquet

    pins = make_trial_raw(dataset, layout)
    (raw,) = layout.hf_home.glob("hub/datasets--*/snapshots/trial")
    parquet.write_table(pyarrow.table({TEXT: texts()}), raw / "all.parquet")
    count, kept = len(texts()), len(texts()) - HELD_OUT
    splits = {"train": RawSplit("all", 0, count)}
    if dataset.name == "owt":
        splits = {
            "train": RawSplit("all", 0, kept),
            "validation": RawSplit("all", kept, count),
        }
    pins = replace(pins, files={"all": RawFiles("all.parquet", count)}, splits=splits)
    prepare_pinned(dataset, pins, layout, processes=1)
    return [
        [
            block
            for path in arrow.data_files(layout.processed(dataset.processed) / split)
            for batch in arrow.read_file(path)
            for block in batch.column("input_ids").to_pylist()
        ]
        for split in splits
    ]


def theirs(python: str, upstream: str, dataset: Dataset, layout: Layout) -> list[list[list[int]]]:
    """The blocks of each split that the upstream's dataset function makes of the texts."""
    folder, module = MODULES.get(upstream, (".", "dataloader"))
    source = CHECKOUTS / upstream / folder
    if not source.is_dir():
        pytest.skip(f"there is no checkout {CHECKOUTS / upstream} (set DLBHPC_UPSTREAMS)")
    assert dataset.tokenizer is not None
    request = {
        "source": str(source),
        "module": module,
        "tokenizer": str(layout.snapshot(dataset.tokenizer.repository, "trial")),
        "length": dataset.sequence_length,
        "texts": texts(),
        "held_out": HELD_OUT,
        "cuts": CUTS[dataset.name],
    }
    (layout.root / "request.json").write_text(json.dumps(request))
    answer = layout.root / "blocks.json"
    done = subprocess.run(
        [python, str(DRIVER), str(layout.root / "request.json"), str(answer)],
        env={
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(layout.root / "home"),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    blocks: list[list[list[int]]] = json.loads(answer.read_text())
    return blocks


@pytest.mark.parametrize("name", ["lm1b", "owt"])
@pytest.mark.parametrize("upstream", MODULES)
def test_the_blocks_are_those_of_the_upstream(
    upstream_python: str, tmp_path: Path, upstream: str, name: str
) -> None:
    layout, dataset = Layout.at(tmp_path).of_trials(), dataset_of_trials(name)
    made = ours(dataset, layout)
    assert sum(map(len, made)) > 500
    assert made == theirs(upstream_python, upstream, dataset, layout)


def test_candi_itself_would_join_eight_documents_rather_than_a_thousand(
    upstream_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, dataset = Layout.at(tmp_path).of_trials(), dataset_of_trials("lm1b")
    made = ours(dataset, layout)
    its_own = theirs(upstream_python, "candi", dataset, layout)
    assert made != its_own
    monkeypatch.setattr(encode, "DOCUMENTS_PER_GROUP", 8)
    assert ours(dataset, Layout.at(tmp_path / "by-eight").of_trials()) == its_own
