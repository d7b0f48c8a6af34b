"""A source checkout counts only when it is the pinned commit and clean."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.inputs.source import verify_checkout

REPOSITORY = "someone/something"


def git(folder: Path, *arguments: str) -> str:
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@example.org",
    }
    return subprocess.run(
        ["git", "-C", str(folder), *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> tuple[Path, str]:
    """A real repository with one commit, and that commit."""
    folder = tmp_path / "upstream"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "main.py").write_text("print('hello')\n")
    (folder / ".gitignore").write_text("*.pyc\nhidden/\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder, git(folder, "rev-parse", "HEAD")


def test_the_clean_pinned_commit_is_accepted(checkout: tuple[Path, str]) -> None:
    verify_checkout(*checkout, REPOSITORY)


def test_bytecode_does_not_make_it_dirty(checkout: tuple[Path, str]) -> None:
    folder, commit = checkout
    (folder / "pkg" / "__pycache__").mkdir(parents=True)
    (folder / "pkg" / "__pycache__" / "main.cpython-39.pyc").write_bytes(b"")
    (folder / "stray.pyo").write_bytes(b"")
    verify_checkout(folder, commit, REPOSITORY)


@pytest.mark.parametrize("name", ["main.py", "new.py", "with blank.py", "hidden/module.py"])
def test_a_changed_new_or_ignored_file_is_refused_by_name(
    checkout: tuple[Path, str], name: str
) -> None:
    folder, commit = checkout
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("changed\n")
    with pytest.raises(DlbhpcError, match=rf"is not clean \({name.split('/')[0]}"):
        verify_checkout(folder, commit, REPOSITORY)


def test_another_commit_is_refused_with_both_named(checkout: tuple[Path, str]) -> None:
    folder, commit = checkout
    (folder / "main.py").write_text("print('other')\n")
    git(folder, "commit", "--quiet", "--all", "--message", "second")
    head = git(folder, "rev-parse", "HEAD")
    with pytest.raises(DlbhpcError, match=rf"is at {head}, the recipe is pinned to {commit}"):
        verify_checkout(folder, commit, REPOSITORY)


def test_a_missing_checkout_names_the_commands_that_get_it(tmp_path: Path) -> None:
    with pytest.raises(DlbhpcError, match=r"git clone https://github\.com/someone/something"):
        verify_checkout(tmp_path / "upstream", "0" * 40, REPOSITORY)


def test_a_callers_git_variables_do_not_answer_for_another_repository(
    checkout: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    verify_checkout(*checkout, REPOSITORY)


def test_a_folder_that_only_looks_like_a_checkout_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "upstream" / ".git").mkdir(parents=True)
    with pytest.raises(DlbhpcError, match="git cannot read the source checkout"):
        verify_checkout(tmp_path / "upstream", "0" * 40, REPOSITORY)
