"""``dlbhpc upstream surface``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dlbhpc.cli import upstream
from dlbhpc.cli.main import main


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "mdlm"
    (folder / "configs").mkdir(parents=True)
    (folder / "configs/config.yaml").write_text("mode: train\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *command], cwd=folder, check=True)
    return folder


def test_a_checkout_is_recorded_under_its_folders_name_or_the_given_one(
    tmp_path: Path,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    surfaces = tmp_path / "surfaces"
    surfaces.mkdir()
    monkeypatch.setattr(upstream, "SURFACES", surfaces)
    assert main(["upstream", "surface", str(checkout)]) == 0
    assert "not its pin" in capsys.readouterr().out
    assert main(["upstream", "surface", str(checkout), "--name", "duo"]) == 0
    assert {path.name for path in surfaces.iterdir()} == {"mdlm.json", "duo.json"}


def test_an_unknown_name_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upstream", "surface", str(tmp_path / "mdml")]) == 2
    assert "ERROR: 'mdml' is no pinned upstream: name one with --name: candi" in (
        capsys.readouterr().err
    )
