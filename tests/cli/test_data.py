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


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fail(*_: object, **__: object) -> str:
        raise ConnectionError("no network in tests")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("prepare", "lm1b"), "billion-word-benchmark/lm1b at 8d52bfd3cc28"),
        (("prepare", "owt"), "Skylion007/openwebtext at 79d93d786212"),
        (("fetch", "hf_small"), "jdeschena/sdtt at baselines_kld_step_70000"),
    ],
)
def test_what_cannot_be_fetched_is_named_with_its_revision_and_place(
    tmp_path: Path, no_network: None, arguments: tuple[str, ...], named: str
) -> None:
    with pytest.raises(DlbhpcError, match=rf"{named}.*under {tmp_path}.*cannot be fetched"):
        run(*arguments, "--root", str(tmp_path))


def test_the_small_data_of_trials_is_prepared_bridged_and_verified_apart(
    tmp_path: Path, no_network: None, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("--trial", "--root", str(tmp_path))
    assert run("prepare", "owt", *common) == 0
    assert run("bridge", "candi", "owt", *common) == 0
    assert run("verify", "owt", *common) == 0
    assert "caches of it: candi" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["trials"]


def test_an_unknown_upstream_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(DlbhpcError, match=r"'reference'.*candi, di4c, duo, flm, mdlm, rdlm, sdtt"):
        run("bridge", "reference", "lm1b", "--root", str(tmp_path))


def test_rdlm_gets_the_raw_text(tmp_path: Path, no_network: None) -> None:
    assert run("bridge", "rdlm", "lm1b", "--trial", "--root", str(tmp_path)) == 0
    cache = tmp_path / "data" / "trials" / "raw" / "huggingface" / "datasets" / "lm1b"
    assert [path.name for path in cache.rglob("*.arrow")]


def test_the_bundled_dataset_is_verified_too(tmp_path: Path) -> None:
    assert run("prepare", "pydoc", "--root", str(tmp_path)) == 0
    assert run("verify", "pydoc", "--root", str(tmp_path)) == 0
    (path,) = tmp_path.rglob("train/*.arrow")
    path.write_bytes(b"damaged")
    with pytest.raises(DlbhpcError, match="prepare the data again"):
        run("verify", "pydoc", "--root", str(tmp_path))


def test_no_process_prepares_nothing(tmp_path: Path) -> None:
    with pytest.raises(DlbhpcError, match="--processes 0"):
        run("prepare", "lm1b", "--processes", "0", "--root", str(tmp_path))


def test_unknown_dataset_is_named_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DlbhpcError, match=r"'pydocs'.*knows: pydoc, lm1b, owt"):
        run("prepare", "pydocs", "--root", str(tmp_path))
    with pytest.raises(DlbhpcError, match=r"'pydoc'; data bridge knows: lm1b, owt"):
        run("bridge", "mdlm", "pydoc", "--root", str(tmp_path))
