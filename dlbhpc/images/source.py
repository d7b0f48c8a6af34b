"""The source that gets frozen: the upstream at its commit, proven file by file."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from dlbhpc.command.bundled import bundled_commit, bundled_files
from dlbhpc.errors import DlbhpcError
from dlbhpc.inputs.source import git, verify_checkout
from dlbhpc.layout import PACKAGE, Layout
from dlbhpc.recipe.model import Upstream

Say = Callable[[str], None]

_PLAIN = ("-c", "core.autocrlf=false", "-c", "core.fileMode=true", "-c", "core.excludesFile=")
"""Settings under which files are what the commit holds, whatever the user's own settings are."""

_NO_PROMPT = {"GIT_TERMINAL_PROMPT": "0"}
"""A repository that is gone must not ask for a password."""


def source_commit(upstream: Upstream) -> str:
    """The pin, or the digest of the bundled upstream's files."""
    return upstream.commit or bundled_commit()


def ensure_checkout(upstream: Upstream, layout: Layout, say: Say) -> Path:
    """The verified checkout ``upstreams/NAME``, fetched if it is not there.

    A git bundle ``upstreams/NAME.bundle`` is taken before the network, for a site without one.
    Raises DlbhpcError when it cannot be had, is at another commit, or is changed.
    """
    assert upstream.repository is not None and upstream.commit is not None
    folder = layout.upstream(upstream.name)
    if not folder.exists():
        bundle = folder.with_suffix(".bundle")
        url = f"https://github.com/{upstream.repository}"
        origin = str(bundle) if bundle.is_file() else url
        say(f"fetching {upstream.name} at {upstream.commit[:12]} from {origin}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{upstream.name}.", dir=folder.parent) as scratch:
            clone = Path(scratch) / "clone"
            _clone(origin, clone)
            try:
                if not _holds(clone, upstream.commit):
                    # A clone brings what branches lead to; a server may hold more.
                    git(clone, "fetch", "--quiet", "origin", upstream.commit, variables=_NO_PROMPT)
                git(clone, "checkout", "--quiet", "--detach", upstream.commit)
            except DlbhpcError as error:
                raise DlbhpcError(
                    f"{origin} does not hold the commit {upstream.commit}, which is the pin of "
                    f"{upstream.name}"
                ) from error
            clone.rename(folder)
    verify_checkout(folder, upstream.commit, upstream.repository)
    return folder


def _holds(clone: Path, commit: str) -> bool:
    try:
        git(clone, "cat-file", "-e", f"{commit}^{{commit}}")
    except DlbhpcError:
        return False
    return True


def _clone(origin: str, folder: Path) -> None:
    argv = ["git", "clone", "--quiet", "--no-checkout", origin, str(folder)]
    try:
        environment = {**os.environ, **_NO_PROMPT}
        done = subprocess.run(argv, capture_output=True, text=True, env=environment)
    except FileNotFoundError as error:
        raise DlbhpcError("git is not installed: it fetches the upstream's source") from error
    if done.returncode != 0:
        raise DlbhpcError(
            f"{origin} cannot be cloned: {done.stderr.strip()}\nwithout a network, put a checkout "
            f"or a git bundle under {folder.parents[1]}: see docs/images.md"
        )


def stage_source(upstream: Upstream, layout: Layout, target: Path, say: Say) -> None:
    """Write the source to the new folder ``target``: what the commit holds, and nothing else."""
    if upstream.commit is None:
        _stage_bundled(target)
    else:
        _stage_commit(ensure_checkout(upstream, layout, say), upstream.commit, target)


def _stage_bundled(target: Path) -> None:
    package = target / PACKAGE.name
    for path in bundled_files():
        copy = package / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    # The package's own holds its version, which is not part of what trains.
    (package / "__init__.py").write_text('"""The part of dlbhpc that trains, frozen."""\n')


def _stage_commit(checkout: Path, commit: str, target: Path) -> None:
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        # An index and objects of our own: the checkout is only read.
        variables = {
            "GIT_INDEX_FILE": f"{scratch}/index",
            "GIT_OBJECT_DIRECTORY": f"{scratch}/objects",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": git(
                checkout, "rev-parse", "--path-format=absolute", "--git-path", "objects"
            ).strip(),
        }
        Path(variables["GIT_OBJECT_DIRECTORY"]).mkdir()

        def run(*arguments: str) -> str:
            return git(checkout, *_PLAIN, *arguments, variables=variables).strip()

        run("read-tree", commit)
        run("checkout-index", "--all", f"--prefix={target}/")
        Path(variables["GIT_INDEX_FILE"]).unlink()
        run("--work-tree", str(target), "add", "--all", "--force", str(target))
        staged, pinned = run("write-tree"), run("rev-parse", f"{commit}^{{tree}}")
    if staged != pinned:
        raise DlbhpcError(
            f"the files of {checkout} give the tree {staged}, the commit {commit} has {pinned}: "
            "remove that checkout, so that it is fetched again"
        )
