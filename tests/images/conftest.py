"""What the tests of images share: make-believe SIF files, and a stand-in for Apptainer."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from dlbhpc.images.spec import ImageSpec, load_image
from dlbhpc.layout import CONTAINERS

SIF = struct.Struct("<32s10s3s3s16s8q")
DESCRIPTOR = struct.Struct("<iBIII7q128s384s")


def sif_bytes(content: bytes, identity: bytes = b"\1" * 16, time: int = 1) -> bytes:
    """A SIF file of one definition and one squashfs partition, as Apptainer lays it out."""
    table, data = SIF.size, SIF.size + 2 * DESCRIPTOR.size
    text = b"Bootstrap: docker\n"
    start = data + 64
    header = SIF.pack(
        b"#!/usr/bin/env run-singularity\n",
        b"SIF_MAGIC\0",
        b"01\0",
        b"02\0",
        identity,
        *(time, time, 0, 2, table, 2 * DESCRIPTOR.size, data, 64 + len(content)),
    )
    definition = DESCRIPTOR.pack(
        0x4001, 1, 1, 1, 0, data, len(text), 64, time, time, 0, 0, b"definition", b""
    )
    partition = DESCRIPTOR.pack(
        *(0x4004, 1, 2, 1, 0, start, len(content), len(content), time, time, 0, 0, b"root"),
        struct.pack("<ii3s", 1, 2, b"02\0"),
    )
    return header + definition + partition + text.ljust(64, b"\0") + content


@pytest.fixture
def write_sif() -> Callable[..., Path]:
    def write(path: Path, content: bytes = b"hsqs" + b"x" * 5000, **fields: object) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sif_bytes(content, **fields))  # type: ignore[arg-type]
        return path

    return write


@pytest.fixture
def own_containers(tmp_path: Path) -> Path:
    """A copy of containers/ that a test may change."""
    return Path(shutil.copytree(CONTAINERS, tmp_path / "containers"))


@pytest.fixture
def reference() -> ImageSpec:
    return load_image("reference")


FAKE = """#!/bin/bash
# What dlbhpc asks of Apptainer, and nothing more; it writes down how it was called.
case "$1" in
--version) echo "apptainer version 9.9.9" ;;
build)
    printf '%s\\n' "$@" >"$FAKE_LOG"
    env | sort >"$FAKE_LOG.env"
    cp -r . "$FAKE_LOG.stage"
    echo "INFO: building"
    [ -z "$FAKE_FAILS" ] || { echo "FATAL: no such thing" >&2; exit 255; }
    cp "$FAKE_SIF" "${@: -2:1}"
    ;;
test)
    printf '%s\\n' "$@" >"$FAKE_LOG.test"
    [ -z "$FAKE_TEST_FAILS" ] || { echo "No module named torch" >&2; exit 1; }
    ;;
*) exit 99 ;;
esac
"""


@pytest.fixture
def fake_apptainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_sif: Callable[..., Path]
) -> Path:
    """A stand-in on PATH whose builds give the file $FAKE_SIF; returns its log."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "apptainer"
    program.write_text(FAKE)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("FAKE_SIF", str(write_sif(tmp_path / "made.sif")))
    monkeypatch.setenv("FAKE_FAILS", "")
    monkeypatch.setenv("FAKE_TEST_FAILS", "")
    return tmp_path / "log"
