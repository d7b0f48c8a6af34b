"""Reading manifests, and comparing data with them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.data import ManifestError, read_manifest, verify_processed
from dlbhpc.data.manifest import digest_files
from dlbhpc.layout import Layout

CONTENT: dict[str, Any] = {
    "dataset": "pydoc",
    "sequence_length": 128,
    "splits": {"train": {"samples": 7, "sha256": "ab"}},
    "features": {"input_ids": "int32"},
    "tokenizer_revision": "cd",
}


def write(path: Path, **changes: Any) -> Path:
    """A manifest with some keys changed, or left out where the value is None."""
    content = {k: v for k, v in {**CONTENT, **changes}.items() if v is not None}
    path.write_text(json.dumps(content))
    return path


def test_manifest_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "pydoc.json")
    manifest = read_manifest(path, "pydoc", 128)
    assert manifest.split("train").samples == 7
    assert manifest.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "lm1b"}, "is for dataset 'lm1b', the recipe needs 'pydoc'"),
        ({"sequence_length": 64}, "is for sequence_length 64, the recipe needs 128"),
        ({"dataset": None}, "lacks 'dataset'"),
        ({"sequence_length": None}, "lacks 'sequence_length'"),
        ({"sequence_length": "128"}, "lacks 'sequence_length'"),
        ({"sequence_length": True}, "lacks 'sequence_length'"),
    ],
)
def test_other_data_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        read_manifest(write(tmp_path / "pydoc.json", **changes), "pydoc", 128)


@pytest.mark.parametrize("content", [b"", b'{"dataset": "pyd', b"\xff\xfe", b"[1]", b"null"])
def test_torn_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pydoc.json"
    path.write_bytes(content)
    with pytest.raises(ManifestError, match=r"pydoc\.json is not"):
        read_manifest(path, "pydoc", 128)


def test_missing_manifest_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"python -m dlbhpc data prepare pydoc$"):
        read_manifest(tmp_path / "pydoc.json", "pydoc", 128)
    trials = Layout.at(tmp_path).of_trials()
    with pytest.raises(ManifestError, match=r"python -m dlbhpc data prepare lm1b --trial$"):
        read_manifest(trials.manifest("lm1b"), "lm1b", 32)


@pytest.mark.parametrize(
    "split", [None, {"samples": 0, "sha256": "a"}, {"samples": True, "sha256": "a"}, {"samples": 3}]
)
def test_split_without_its_numbers_is_refused(tmp_path: Path, split: Any) -> None:
    manifest = read_manifest(write(tmp_path / "m.json", splits={"train": split}), "pydoc", 128)
    with pytest.raises(ManifestError, match="train"):
        manifest.split("train")


def test_schema_is_features_and_tokenizer_alone(tmp_path: Path) -> None:
    def schema(**changes: Any) -> str:
        return read_manifest(write(tmp_path / "m.json", **changes), "pydoc", 128).schema_sha256

    assert schema() == schema(splits={"train": {"samples": 8, "sha256": "x"}})
    assert schema() != schema(features={"input_ids": "int64"})
    assert schema() != schema(tokenizer_revision="other")


def test_changed_missing_and_additional_data_files_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    folder.mkdir()
    (folder / "a.arrow").write_bytes(b"one")
    splits = {"train": {"samples": 1, "sha256": digest_files(folder, "*.arrow")}}
    manifest = read_manifest(write(tmp_path / "m.json", splits=splits), "pydoc", 128)
    verify_processed(manifest, tmp_path, ("train",))

    (folder / "b.arrow").write_bytes(b"two")
    with pytest.raises(ManifestError, match="train is not what"):
        verify_processed(manifest, tmp_path, ("train",))
    (folder / "b.arrow").unlink()
    (folder / "a.arrow").write_bytes(b"two")
    with pytest.raises(ManifestError, match="train is not what"):
        verify_processed(manifest, tmp_path, ("train",))
    (folder / "a.arrow").unlink()
    with pytest.raises(ManifestError, match="train is not what"):
        verify_processed(manifest, tmp_path, ("train",))
