"""The bundled dataset: the language reference that every CPython ships, as token blocks.

``pydoc_data.topics`` is some 460 kB of English prose. It needs no network and no licence beyond
Python's own, and is real text: a model that learns from it has learned something.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlbhpc.data.blocks import Blocks, to_blocks
from dlbhpc.data.lock import Lock, exclusive
from dlbhpc.data.manifest import (
    SCHEMA_VERSION,
    ManifestError,
    digest_files,
    read_manifest,
    verify_processed,
)
from dlbhpc.files import write_bytes
from dlbhpc.layout import Layout

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DATASET = "pydoc"
SEQUENCE_LENGTH = 128
VOCAB_SIZE = 1024
PAD, EOS, MASK = SPECIAL_TOKENS = ("[PAD]", "[EOS]", "[MASK]")
SPLITS = ("train", "validation")
VALIDATION_EVERY = 10
"""Every tenth topic, in the order of their names, is held out."""


def prepare_pydoc(root: Path) -> Path:
    """Prepare pydoc under the project root ``root`` and return the path of its manifest.

    The data is built beside its place and renamed into it, the manifest comes last: prepared is
    what has a manifest. Data that is there already is compared with its manifest and left alone.
    One process prepares, others wait.
    The bytes depend on the text and on the libraries' versions, not on threads, time or place.

    Raises:
        ManifestError: prepared data is there and does not match its manifest.
    """
    layout = Layout.at(root)
    processed = layout.processed(f"{DATASET}-bpe-{SEQUENCE_LENGTH}")
    manifest = layout.manifest(DATASET)
    if not manifest.exists():
        processed.parent.mkdir(parents=True, exist_ok=True)
        manifest.parent.mkdir(parents=True, exist_ok=True)
        lock_file = processed.parent / f".{processed.name}.lock"
        with exclusive(lock_file, f"preparing {DATASET}") as lock:
            if not manifest.exists():
                _prepare(processed, manifest, lock)
                return manifest
    _verify(manifest, processed)
    print(f"{DATASET}: already prepared, {processed} matches {manifest}", flush=True)
    return manifest


def split_topics(topics: Mapping[str, str]) -> dict[str, list[str]]:
    """The documents of each split, in the order of their topics' names."""
    documents = [topics[name] for name in sorted(topics)]
    return {
        "train": [text for i, text in enumerate(documents) if i % VALIDATION_EVERY],
        "validation": documents[::VALIDATION_EVERY],
    }


def train_tokenizer(documents: Iterable[str]) -> Tokenizer:
    """A byte-level BPE of ``VOCAB_SIZE`` tokens; any text can be encoded and decoded exactly."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def _prepare(processed: Path, manifest: Path, lock: Lock) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{DATASET}-", dir=processed.parent) as scratch:
        built = Path(scratch, "built")
        content = _build(built)
        lock.check()
        if processed.exists():  # without a manifest: left behind by an interrupted preparation
            processed.rename(Path(scratch, "unfinished"))
        built.rename(processed)
    lock.check()
    write_bytes(manifest, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())
    print(f"{DATASET}: prepared, manifest {manifest}", flush=True)


def _build(folder: Path) -> dict[str, Any]:
    """Write tokenizer and splits into ``folder``; return the manifest's content."""
    from pydoc_data.topics import topics

    from datasets import Dataset, DatasetDict, Features, Value
    from datasets import Sequence as ListFeature
    from datasets.utils.logging import disable_progress_bar

    documents = split_topics(topics)
    print(f"{DATASET}: training a tokenizer on {len(documents['train'])} topics", flush=True)
    tokenizer = train_tokenizer(documents["train"])
    tokenizer_file = folder / "tokenizer" / "tokenizer.json"
    tokenizer_file.parent.mkdir(parents=True)
    tokenizer.save(str(tokenizer_file))

    features = Features(
        input_ids=ListFeature(Value("int32"), length=SEQUENCE_LENGTH),
        attention_mask=ListFeature(Value("uint8"), length=SEQUENCE_LENGTH),
    )
    blocks = {name: _tokenize(tokenizer, documents[name]) for name in SPLITS}
    disable_progress_bar()
    DatasetDict(
        {
            name: Dataset.from_dict(
                {"input_ids": split.input_ids, "attention_mask": split.attention_mask},
                features=features,
            )
            for name, split in blocks.items()
        }
    ).save_to_disk(str(folder))
    for name, split in blocks.items():
        print(f"{DATASET}: {name} {len(split.input_ids)} blocks, {split.tokens} tokens", flush=True)

    text = json.dumps(topics, sort_keys=True).encode()
    return {
        "schema_version": SCHEMA_VERSION,
        "dataset": DATASET,
        "sequence_length": SEQUENCE_LENGTH,
        "vocab_size": tokenizer.get_vocab_size(),
        "tokenizer_revision": _sha256(tokenizer_file),
        "features": {"input_ids": "int32", "attention_mask": "uint8"},
        "splits": {
            name: {
                "samples": len(split.input_ids),
                "tokens": split.tokens,
                "sha256": digest_files(folder / name, "*.arrow"),
            }
            for name, split in blocks.items()
        },
        "source": {
            "text": "pydoc_data.topics",
            "python": platform.python_version(),
            "sha256": hashlib.sha256(text).hexdigest(),
        },
    }


def _tokenize(tokenizer: Tokenizer, documents: list[str]) -> Blocks:
    encoded = [encoding.ids for encoding in tokenizer.encode_batch(documents)]
    end, padding = SPECIAL_TOKENS.index(EOS), SPECIAL_TOKENS.index(PAD)  # they come first
    return to_blocks(encoded, SEQUENCE_LENGTH, end=end, padding=padding)


def _verify(manifest_path: Path, processed: Path) -> None:
    manifest = read_manifest(manifest_path, DATASET, SEQUENCE_LENGTH)
    verify_processed(manifest, processed, SPLITS)
    tokenizer_file = processed / "tokenizer" / "tokenizer.json"
    revision = manifest.content.get("tokenizer_revision")
    if not tokenizer_file.is_file() or _sha256(tokenizer_file) != revision:
        raise ManifestError(
            f"{tokenizer_file} is not the tokenizer that {manifest_path} names; "
            f"remove {processed} and {manifest_path} and prepare the data again"
        )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
