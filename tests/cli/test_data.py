"""The ``data`` command."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from dlbhpc.cli import data
from dlbhpc.errors import DlbhpcError


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    data.add_arguments(parser)
    return data.run(parser.parse_args(arguments))


def test_pydoc_is_prepared_under_the_root(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("prepare", "pydoc", "--root", str(tmp_path)) == 0
    assert (tmp_path / "data" / "manifests" / "pydoc.json").is_file()
    assert "pydoc: prepared" in capsys.readouterr().out


@pytest.mark.parametrize("dataset", ["lm1b", "owt"])
def test_pinned_datasets_say_that_they_are_not_prepared_here(tmp_path: Path, dataset: str) -> None:
    with pytest.raises(DlbhpcError, match=rf"{dataset} is not in this version.*pinned raw data"):
        run("prepare", dataset, "--root", str(tmp_path))


def test_unknown_dataset_is_named_with_the_known_one(tmp_path: Path) -> None:
    with pytest.raises(DlbhpcError, match=r"'pydocs'.*knows: pydoc"):
        run("prepare", "pydocs", "--root", str(tmp_path))
