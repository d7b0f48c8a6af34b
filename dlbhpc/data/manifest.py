"""The manifest of a processed dataset, data/manifests/DATASET.json (standard library only)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlbhpc.errors import DlbhpcError
from dlbhpc.files import file_digest

SCHEMA_VERSION = 1


class ManifestError(DlbhpcError):
    """A manifest, or the data it describes, is not what the run needs."""


@dataclass(frozen=True)
class Split:
    """One split: how many blocks it holds and the digest of its data files."""

    samples: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a processed dataset is, as far as a run depends on it.

    ``sha256`` is the digest of the manifest's own bytes. ``content`` is the whole JSON object:
    only ``dataset`` and ``sequence_length`` are in every manifest.
    """

    path: Path
    sha256: str
    dataset: str
    sequence_length: int
    content: Mapping[str, Any]

    def split(self, name: str) -> Split:
        """The record of split ``name``.

        Raises:
            ManifestError: the manifest does not describe that split.
        """
        record = self._get("splits").get(name)
        if not isinstance(record, dict):
            raise ManifestError(f"{self.path} describes no split {name!r}; prepare the data again")
        samples, sha256 = record.get("samples"), record.get("sha256")
        if type(samples) is not int or samples < 1 or not isinstance(sha256, str):
            raise ManifestError(
                f"{self.path}: split {name!r} needs samples (a positive whole number) and sha256, "
                f"it has {record!r}; prepare the data again"
            )
        return Split(samples, sha256)

    @property
    def schema_sha256(self) -> str:
        """Digest of what a sample means: its features and the tokenizer's revision."""
        schema = {
            "features": self._get("features"),
            "tokenizer_revision": self.content.get("tokenizer_revision"),
        }
        text = json.dumps(schema, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def _get(self, key: str) -> dict[str, Any]:
        value = self.content.get(key)
        if not isinstance(value, dict):
            raise ManifestError(f"{self.path} lacks {key!r}; prepare the data again")
        return value


def read_manifest(path: Path, dataset: str, sequence_length: int) -> Manifest:
    """Read the manifest at ``path``, which must describe ``dataset`` in blocks of that length.

    Raises:
        ManifestError: there is none, it cannot be read, or it describes other data.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        # The small data lie in data/trials: without the flag the whole corpus would be prepared.
        trial = " --trial" if path.parents[1].name == "trials" else ""
        raise ManifestError(
            f"{dataset} is not prepared: there is no manifest {path}; "
            f"run: python -m dlbhpc data prepare {dataset}{trial}"
        ) from None
    except OSError as error:
        raise ManifestError(f"cannot read the manifest {path}: {error.strerror}") from error
    try:
        content = json.loads(raw)
    except ValueError as error:
        raise ManifestError(
            f"the manifest {path} is not valid JSON ({error}); remove it and prepare the data again"
        ) from None
    if not isinstance(content, dict):
        raise ManifestError(f"the manifest {path} is not a JSON object; prepare the data again")
    for key, kind, wanted in (("dataset", str, dataset), ("sequence_length", int, sequence_length)):
        if type(content.get(key)) is not kind:
            raise ManifestError(
                f"the manifest {path} lacks {key!r} ({kind.__name__}); prepare the data again"
            )
        if content[key] != wanted:
            raise ManifestError(
                f"the manifest {path} is for {key} {content[key]!r}, the recipe needs {wanted!r}; "
                "name the dataset that was prepared, or prepare the one that is needed"
            )
    return Manifest(path, hashlib.sha256(raw).hexdigest(), dataset, sequence_length, content)


def digest_files(folder: Path, pattern: str) -> str:
    """One sha256 over the names and contents of the files in ``folder`` that match ``pattern``."""
    paths = sorted(folder.glob(pattern))
    digest = hashlib.sha256()
    for path, content in zip(paths, file_digests(paths), strict=True):
        digest.update(f"{path.name} {content}\n".encode())
    return digest.hexdigest()


def file_digests(paths: Iterable[Path]) -> list[str]:
    """The sha256 of each file, on all cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing runs outside the interpreter's lock
        return list(pool.map(file_digest, paths))


def verify_processed(manifest: Manifest, folder: Path, splits: tuple[str, ...]) -> None:
    """Compare the data files of each split in ``folder`` with the manifest.

    Raises:
        ManifestError: a split is missing or differs from what was prepared.
    """
    for name in splits:
        found = digest_files(folder / name, "*.arrow")
        if found != manifest.split(name).sha256:
            raise ManifestError(
                f"{folder / name} is not what {manifest.path} describes (a file is missing or "
                f"changed); remove {folder} and {manifest.path} and prepare the data again"
            )
