"""The raw data of trials: the bundled text in the shape of the pinned datasets, at toy size.

Tokenizers are made from that text, with the special tokens where the real ones have them, and
written as the hub keeps them: what reads them, the upstreams' own code included, cannot tell.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlbhpc.data.pydoc import split_topics
from dlbhpc.data.raw import TEXT, RawFiles, RawPins, RawSplit, read_pins
from dlbhpc.layout import Layout
from dlbhpc.recipe import Dataset

REVISION = "trial"
_HELD_OUT = 20
"""Documents at the end of owt's that are its validation."""
_UNUSED = [f"[unused{i}]" for i in range(1, 100)]
BERT_SPECIAL = ["[PAD]", *_UNUSED, "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
"""BERT's own: [PAD] is 0, [UNK] 100, [CLS] 101, [SEP] 102, [MASK] 103."""
GPT2_END = "<|endoftext|>"


def pins_of(dataset: Dataset, layout: Layout) -> RawPins:
    """The pins of a dataset's raw text; that of trials is made where the layout is theirs."""
    return make_trial_raw(dataset, layout) if layout.small_data else read_pins(dataset.name)


def make_trial_raw(dataset: Dataset, layout: Layout) -> RawPins:
    """Write the raw text and the tokenizer of a trial of ``dataset``; returns their pins.

    What is there already is replaced by the same.
    """
    from pydoc_data.topics import topics

    assert dataset.tokenizer is not None, "the datasets of the pinned upstreams have a tokenizer"
    texts = split_topics(topics)
    make, published = _SHAPES[dataset.name]
    documents = published(texts)
    pins = read_pins(dataset.name)
    folder = layout.hf_home / "hub" / ("datasets--" + pins.repository.replace("/", "--"))
    files = {}
    for name, rows in documents.items():
        path = folder / "snapshots" / REVISION / "plain_text" / f"{name}.parquet"
        _write_parquet(path, rows)
        files[name] = RawFiles(f"plain_text/{path.name}", len(rows))
    make(layout.snapshot(dataset.tokenizer.repository, REVISION), texts["train"], dataset)
    return replace(pins, revision=REVISION, files=files, splits=_splits(dataset.name, documents))


def _splits(dataset: str, documents: Mapping[str, list[str]]) -> dict[str, RawSplit]:
    train = len(documents["train"])
    if "test" in documents:
        return {
            "train": RawSplit("train", 0, train),
            "validation": RawSplit("test", 0, len(documents["test"])),
        }
    return {
        "train": RawSplit("train", 0, train - _HELD_OUT),
        "validation": RawSplit("train", train - _HELD_OUT, train),
    }


def _lm1b_documents(texts: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Lines, as lm1b has sentences."""
    lines = {
        name: [line for text in part for line in text.splitlines()] for name, part in texts.items()
    }
    return {"train": lines["train"], "test": lines["validation"]}


def _owt_documents(texts: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Whole topics, the last of them held out."""
    return {"train": [*texts["train"], *texts["validation"]]}


def make_bert(folder: Path, texts: Iterable[str], dataset: Dataset) -> None:
    """A WordPiece tokenizer of ``dataset.base_vocab`` tokens in ``folder``.

    Its vocabulary is every letter and the most frequent words: the library's own trainer gives
    other numbers each time.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    normalizer = normalizers.BertNormalizer(lowercase=True)
    pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words = Counter(
        word
        for text in texts
        for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text))
    )
    letters = sorted({letter for word in words for letter in word})
    parts = [*letters, *(f"##{letter}" for letter in letters)]
    frequent = sorted((word for word in words if len(word) > 1), key=lambda w: (-words[w], w))
    vocabulary = [*BERT_SPECIAL, *parts, *frequent][: dataset.base_vocab]
    assert len(vocabulary) == dataset.base_vocab > len(BERT_SPECIAL) + len(parts)
    numbers = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer.add_special_tokens(BERT_SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 101), ("[SEP]", 102)],
    )
    content = json.loads(tokenizer.to_str())
    content["model"]["vocab"] = numbers  # in the order of the numbers, which the library has not
    _write_snapshot(
        folder,
        content,
        {"model_type": "bert", "vocab_size": len(vocabulary)},
        {"do_lower_case": True, "model_max_length": 512},
    )
    _write(folder / "vocab.txt", "".join(f"{token}\n" for token in vocabulary))


def make_gpt2(folder: Path, texts: Iterable[str], dataset: Dataset) -> None:
    """A byte-level BPE tokenizer of ``dataset.base_vocab`` tokens in ``folder``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=dataset.base_vocab - 1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([GPT2_END])
    content = json.loads(tokenizer.to_str())
    # As the real ones have them: the libraries of the images read no pairs, and the last token
    # stands in the vocabulary.
    content["model"]["merges"] = [
        merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]
    ]
    vocabulary = {**content["model"]["vocab"], GPT2_END: dataset.base_vocab - 1}
    content["model"]["vocab"] = dict(sorted(vocabulary.items(), key=lambda item: item[1]))
    _write_snapshot(
        folder,
        content,
        {"model_type": "gpt2", "vocab_size": dataset.base_vocab},
        {"model_max_length": 1024},
    )
    _write(folder / "vocab.json", json.dumps(content["model"]["vocab"]))
    merges = "".join(f"{merge}\n" for merge in content["model"]["merges"])
    _write(folder / "merges.txt", f"#version: 0.2\n{merges}")


def _write_snapshot(
    folder: Path, tokenizer: dict[str, Any], config: dict[str, Any], settings: dict[str, Any]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("tokenizer.json", tokenizer),
        ("config.json", config),
        ("tokenizer_config.json", settings),
    ):
        _write(folder / name, json.dumps(content, indent=1))


def _write(path: Path, text: str) -> None:
    """Replace a file at once: a trial that runs may be reading it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _write_parquet(path: Path, rows: list[str]) -> None:
    import pyarrow
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    parquet.write_table(pyarrow.table({TEXT: rows}), temporary)
    temporary.replace(path)


_SHAPES = {"lm1b": (make_bert, _lm1b_documents), "owt": (make_gpt2, _owt_documents)}
