"""Processed datasets: how one is prepared, and the manifest that says what it is."""

from __future__ import annotations

from pathlib import Path

from dlbhpc.data.manifest import Manifest, ManifestError, Split, read_manifest, verify_processed

__all__ = [
    "Manifest",
    "ManifestError",
    "Split",
    "prepare_pydoc",
    "read_manifest",
    "verify_processed",
]


def prepare_pydoc(root: Path) -> Path:
    """Prepare the bundled dataset under ``root``; see :func:`dlbhpc.data.pydoc.prepare_pydoc`."""
    from dlbhpc.data.pydoc import prepare_pydoc as prepare

    return prepare(root)
