"""Every path under the project root, and the rules that keep a path inside it.

Two folders are told apart: the *checkout*, where this package, its templates and its cluster
profiles lie, and the project *root*, where data, source checkouts, images and runs lie. They are
the same folder unless the user names another root.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace
from pathlib import Path

from dlbhpc.errors import DlbhpcError

PACKAGE = Path(__file__).resolve().parent
CHECKOUT = PACKAGE.parent
CONF = PACKAGE / "conf"
SURFACES = CONF / "surfaces"
REFERENCE = PACKAGE / "reference"
ADAPTERS = PACKAGE / "inside" / "adapters"
TEMPLATES = CHECKOUT / "templates"
PROFILES = CHECKOUT / "slurm" / "profiles"
CONTAINERS = CHECKOUT / "containers"


class PathError(DlbhpcError):
    """A path that must not be used: outside the root, through a symlink, or unprintable."""


@dataclass(frozen=True)
class Layout:
    """Where everything lies under one project root (absolute, symlinks resolved).

    ``small_data`` says that data are those of trials at toy size: a tree of their own, in which
    everything lies as it does among the real data.
    """

    root: Path
    small_data: bool = False

    @classmethod
    def at(cls, root: Path | None = None) -> Layout:
        """The layout of ``root`` (the checkout by default).

        The root itself may be reached through a symlink: it is resolved once, here.
        """
        _require_printable(root or CHECKOUT, "the project root")
        return cls((root or CHECKOUT).expanduser().resolve())

    def of_trials(self) -> Layout:
        """The same root with the small data of trials."""
        return replace(self, small_data=True)

    # Data

    @property
    def data(self) -> Path:
        return self.root / "data" / "trials" if self.small_data else self.root / "data"

    def processed(self, folder: str) -> Path:
        """The processed dataset ``folder`` (a dataset record's ``processed``)."""
        return self.data / "processed" / folder

    def manifest(self, dataset: str) -> Path:
        return self.data / "manifests" / f"{dataset}.json"

    def training_cache(self, upstream: str, dataset: str) -> Path:
        return self.data / "training_cache" / upstream / dataset

    @property
    def hf_home(self) -> Path:
        return self.data / "raw" / "huggingface"

    @property
    def hf_datasets_cache(self) -> Path:
        return self.hf_home / "datasets"

    def snapshot(self, repository: str, revision: str) -> Path:
        """The local snapshot of a Hugging Face model or tokenizer repository."""
        folder = "models--" + repository.replace("/", "--")
        return self.hf_home / "hub" / folder / "snapshots" / revision

    # Sources, images, runs

    @property
    def upstreams(self) -> Path:
        return self.root / "upstreams"

    def upstream(self, name: str) -> Path:
        return self.upstreams / name

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def trials(self) -> Path:
        """Where trials lie, and nothing else does."""
        return self.checkpoints / "trials"

    def run_folder(self, dataset: str, recipe: str, *, trial: bool = False) -> Path:
        """The default output folder of a run."""
        kind = self.trials if trial else self.checkpoints / "self_trained"
        return kind / dataset / recipe

    def seeds_folder(self, dataset: str, recipe: str, *, trial: bool = False) -> Path:
        """The default folder of several runs that differ in their seed."""
        folder = self.run_folder(dataset, recipe, trial=trial)
        return folder.with_name(f"{folder.name}-seeds")

    # Path rules

    def inside(self, path: Path, what: str) -> Path:
        """``path`` as an absolute path strictly inside the root; a relative one is taken from it.

        Raises :class:`PathError` for a path outside the root, with ``..`` or control characters,
        or with a symlink on the way. The path need not exist. ``what`` names it in the message.
        """
        _require_printable(path, what)
        if ".." in path.parts:
            raise PathError(f"{what} {path} contains '..': write the path without it")
        absolute = path if path.is_absolute() else self.root / path
        below = self._below_root(absolute)
        if below is None or not below.parts:
            raise PathError(
                f"{what} {path} is not inside the project root {self.root}: choose a path below "
                "it, or name another --root"
            )
        step = self.root
        for part in below.parts:
            step = step / part
            if step.is_symlink():
                raise PathError(
                    f"{what} {path} passes through the symlink {step}: use the real folder"
                )
        return step

    def output(self, path: Path, *, trial: bool) -> Path:
        """``path`` as an output folder: inside the root, apart from inputs, trials by themselves.

        Raises :class:`PathError`.
        """
        output = self.inside(path, "the output")
        for taken in (self.root / "data", self.upstreams, self.images):
            if output.is_relative_to(taken):
                raise PathError(
                    f"the output {path} lies in {taken}, which holds what runs read: choose a "
                    f"folder under {self.checkpoints}"
                )
        if output.is_relative_to(self.trials) != trial:
            kind, where = ("a trial", "below") if trial else ("a locked run", "outside")
            raise PathError(f"the output {path}: {kind} must lie {where} {self.trials}")
        return output

    def _below_root(self, absolute: Path) -> Path | None:
        """The part of a path below the root; None outside it.

        A user who reaches the root through a symlink writes paths that begin with that symlink:
        the longest leading part that resolves to the root is accepted as the root.
        """
        if absolute.is_relative_to(self.root):
            return absolute.relative_to(self.root)
        for parent in [absolute, *absolute.parents]:
            if parent.exists() and parent.resolve() == self.root:
                return absolute.relative_to(parent)
        return None


@dataclass(frozen=True)
class OutputLayout:
    """What lies where in a run's folder."""

    folder: Path

    # Records

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe.json"

    @property
    def launch_argv(self) -> Path:
        return self.folder / "launch_argv.json"

    @property
    def run(self) -> Path:
        return self.folder / "run.json"

    @property
    def composed_config(self) -> Path:
        # Not config.yaml: two upstreams overwrite that name in their working directory.
        return self.folder / "composed_config.yaml"

    @property
    def provenance(self) -> Path:
        return self.folder / "provenance.json"

    @property
    def completed(self) -> Path:
        return self.folder / "completed.json"

    @property
    def lease(self) -> Path:
        return self.folder / "lease.json"

    # State

    @property
    def steps(self) -> Path:
        return self.folder / "steps"

    @property
    def latest(self) -> Path:
        return self.steps / "latest.json"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def last_checkpoint(self) -> Path:
        """Where the upstreams resume from."""
        return self.checkpoints / "last.ckpt"

    @property
    def upstream_saves(self) -> tuple[Path, ...]:
        """Where upstreams save besides: rdlm for preemptions, the sdtt family after each round."""
        return self.folder / "checkpoints-meta", self.folder / "student_checkpoints"

    @property
    def attempts(self) -> Path:
        return self.folder / "attempts"

    def attempt(self, number: int) -> Path:
        return self.attempts / f"{number:05d}"

    @property
    def evaluation(self) -> Path:
        return self.folder / "evaluation"

    # Inputs and job

    @property
    def adapted_teacher(self) -> Path:
        return self.folder / "inputs" / "teacher_adapted.ckpt"

    @property
    def adapted_teacher_provenance(self) -> Path:
        return self.folder / "inputs" / "teacher_adapted.provenance.json"

    def input_digest(self, name: str) -> Path:
        """Where the digest of an input file is remembered, for attempts not to read it again."""
        return self.folder / "inputs" / f"{name}.digest.json"

    @property
    def temporary(self) -> Path:
        """Temporary files that must lie on the output's file system to be moved atomically."""
        return self.folder / "tmp"

    @property
    def job(self) -> Path:
        """The scheduler's folder: batch script, logs, and what submitit keeps."""
        return self.folder / "job"

    @property
    def batch_script(self) -> Path:
        return self.job / "batch.sh"

    @property
    def control(self) -> Path:
        """Where a request to a local job is left."""
        return self.job / "control.json"


def _require_printable(path: Path, what: str) -> None:
    # "Cc" are the control characters; a newline in a path would end a line of the batch script.
    # "Cs" stands for bytes that are no UTF-8, which no JSON record could hold.
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in str(path)):
        raise PathError(
            f"{what} {str(path)!r} contains a control character or bytes that are no text"
        )
    if "${" in str(path):
        # Hydra and OmegaConf would read it as an interpolation in every upstream's configuration.
        raise PathError(f"{what} {path} contains '${{', which Hydra reads as an interpolation")
