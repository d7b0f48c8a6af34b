"""What is frozen is what the commit holds: fetched from a bundle, proven, and staged."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.images.source import ensure_checkout, source_commit, stage_source
from dlbhpc.images.spec import load_upstream
from dlbhpc.layout import Layout
from dlbhpc.recipe.model import Upstream


def git(folder: Path, *arguments: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment["GIT_CONFIG_GLOBAL"] = os.devnull
    names = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    argv = ["git", "-C", str(folder), *names, *arguments]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, env=environment)
    return done.stdout.strip()


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    """An upstream whose repository is a folder here."""
    folder = tmp_path / "origin"
    (folder / "configs").mkdir(parents=True)
    git(folder, "init", "--quiet")
    (folder / "main.py").write_text("print(1)\n")
    (folder / "run.sh").write_text("echo\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "configs" / "config.yaml").write_text("a: 1\n")
    (folder / ".gitignore").write_text("*.yaml\n")
    (folder / ".gitattributes").write_text("main.py export-ignore\n")
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message", "first")
    commit = git(folder, "rev-parse", "HEAD")
    (folder / "main.py").write_text("print(2)\n")
    git(folder, "commit", "--quiet", "--all", "--message", "second")
    git(folder, "bundle", "create", "--quiet", str(tmp_path / "all.bundle"), "HEAD", "--all")
    return replace(load_upstream("duo"), commit=commit)


@pytest.fixture
def layout(tmp_path: Path, upstream: Upstream) -> Layout:
    """A root whose bundle holds that upstream."""
    (tmp_path / "root" / "upstreams").mkdir(parents=True)
    (tmp_path / "all.bundle").rename(tmp_path / "root" / "upstreams" / "duo.bundle")
    return Layout.at(tmp_path / "root")


def test_a_bundle_becomes_a_checkout_at_the_pin(layout: Layout, upstream: Upstream) -> None:
    said: list[str] = []
    folder = ensure_checkout(upstream, layout, said.append)
    assert folder == layout.upstream("duo")
    assert (folder / "main.py").read_text() == "print(1)\n"
    assert "duo.bundle" in said[0]
    assert ensure_checkout(upstream, layout, said.append) == folder
    assert len(said) == 1
    assert sorted(path.name for path in folder.parent.iterdir()) == ["duo", "duo.bundle"]


def test_a_commit_that_no_branch_leads_to_any_more_is_fetched_by_its_name(
    layout: Layout, upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a forced push: a clone does not bring it."""
    origin = tmp_path / "origin"
    old = git(origin, "branch", "--show-current")
    git(origin, "checkout", "--quiet", "--orphan", "rewritten")
    git(origin, "commit", "--quiet", "--message", "another history")
    git(origin, "branch", "--quiet", "-D", old)
    layout.upstream("duo").with_suffix(".bundle").unlink()
    instead = f'[url "file://{origin}"]\n\tinsteadOf = https://github.com/{upstream.repository}\n'
    (tmp_path / ".gitconfig").write_text(instead)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    folder = ensure_checkout(upstream, layout, print)
    assert (folder / "main.py").read_text() == "print(1)\n"


def test_a_bundle_without_the_commit_is_refused_and_leaves_nothing(
    layout: Layout, upstream: Upstream
) -> None:
    missing = replace(upstream, commit="0" * 40)
    with pytest.raises(DlbhpcError, match=rf"does not hold the commit {'0' * 40}"):
        ensure_checkout(missing, layout, print)
    assert [path.name for path in layout.upstream("x").parent.iterdir()] == ["duo.bundle"]


def test_a_dirty_checkout_is_refused(layout: Layout, upstream: Upstream, tmp_path: Path) -> None:
    folder = ensure_checkout(upstream, layout, print)
    (folder / "extra.py").touch()
    with pytest.raises(DlbhpcError, match=r"is not clean \(extra.py\)"):
        stage_source(upstream, layout, tmp_path / "stage", print)
    assert not (tmp_path / "stage").exists()


def test_another_commit_is_refused(layout: Layout, upstream: Upstream, tmp_path: Path) -> None:
    folder = ensure_checkout(upstream, layout, print)
    git(folder, "checkout", "--quiet", git(folder, "rev-parse", "origin/HEAD"))
    with pytest.raises(DlbhpcError, match=f"the recipe is pinned to {upstream.commit}"):
        stage_source(upstream, layout, tmp_path / "stage", print)


def test_exactly_the_commits_files_are_staged(
    layout: Layout, upstream: Upstream, tmp_path: Path
) -> None:
    stage = tmp_path / "work" / "stage"
    (tmp_path / "work").mkdir()
    stage_source(upstream, layout, stage, print)
    files = sorted(str(path.relative_to(stage)) for path in stage.rglob("*") if path.is_file())
    # An ignored file that was committed counts, an export attribute does not.
    assert files == [".gitattributes", ".gitignore", "configs/config.yaml", "main.py", "run.sh"]
    assert os.access(stage / "run.sh", os.X_OK)
    assert [path.name for path in stage.parent.iterdir()] == ["stage"]
    assert git(layout.upstream("duo"), "status", "--porcelain") == ""


def test_a_change_that_git_does_not_report_is_not_staged(
    layout: Layout, upstream: Upstream, tmp_path: Path
) -> None:
    folder = ensure_checkout(upstream, layout, print)
    git(folder, "update-index", "--assume-unchanged", "main.py")
    (folder / "main.py").write_text("print('evil')\n")
    (tmp_path / "work").mkdir()
    stage_source(upstream, layout, tmp_path / "work" / "stage", print)
    assert (tmp_path / "work" / "stage" / "main.py").read_text() == "print(1)\n"


def test_without_network_bundle_or_checkout_the_way_out_is_named(
    layout: Layout, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout.upstream("duo").with_suffix(".bundle").unlink()
    for name, value in (
        ("GIT_CONFIG_COUNT", "1"),
        ("GIT_CONFIG_KEY_0", "url./nowhere/.insteadOf"),
        ("GIT_CONFIG_VALUE_0", "https://github.com/"),
    ):
        monkeypatch.setenv(name, value)
    with pytest.raises(DlbhpcError, match=r"cannot be cloned(.|\n)*put a checkout or a git bundle"):
        ensure_checkout(upstream, layout, print)
    assert list(layout.upstream("x").parent.iterdir()) == []


def test_the_bundled_upstream_is_staged_without_the_version_and_imports_nothing_else(
    layout: Layout, tmp_path: Path
) -> None:
    stage = tmp_path / "stage"
    bundled = load_upstream("reference")
    assert source_commit(bundled).startswith("bundled-")
    stage_source(bundled, layout, stage, print)
    assert "__version__" not in (stage / "dlbhpc" / "__init__.py").read_text()
    assert not (stage / "dlbhpc" / "cli").exists()
    script = """if True:
        import sys
        sys.path.insert(0, sys.argv[1])
        import dlbhpc.reference.train, dlbhpc.inside.step_callback
        files = [m.__file__ for n, m in sys.modules.items() if n.startswith("dlbhpc")]
        assert all(f.startswith(sys.argv[1]) for f in files), files
    """
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, str(stage)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
