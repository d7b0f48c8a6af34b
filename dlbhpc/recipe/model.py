"""What a recipe is: frozen records, in the shape in which dlbhpc/conf writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from dlbhpc.records import from_plain, to_plain

Value: TypeAlias = str | int | float | bool | None
"""The value of an override or a departure, before it becomes text."""

SNAPSHOT_INIT = "hf_small"
"""The start of a student that needs published weights."""


@dataclass(frozen=True)
class Snapshot:
    """A revision of a Hugging Face repository."""

    repository: str
    revision: str


@dataclass(frozen=True)
class Dataset:
    """What a recipe trains on.

    ``aliases`` maps the folder that an upstream looks for in its training cache to the split it
    stands for. ``tokenizer`` is None where the tokenizer lies beside the processed data.
    """

    name: str
    tokenizer: Snapshot | None
    base_vocab: int
    sequence_length: int
    processed: str
    aliases: Mapping[str, str]


@dataclass(frozen=True)
class Upstream:
    """The code that trains: a pinned repository, or the bundled reference (no commit).

    ``config`` is the root and the name of its own Hydra configuration, as in ``configs/config``.
    ``import_root`` is what goes first on PYTHONPATH, relative to the checkout. ``spawns_ranks``
    says that one task per node starts the processes of its GPUs itself. ``objective`` names what
    the loss is, where it is not simply the upstream's own. ``extra_steps`` are the optimizer steps
    that it makes beyond those of the recipe; ``step_key`` is where its checkpoints hold their step.
    ``watcher`` is the script of dlbhpc/inside/adapters that runs the command, for an upstream that
    takes no step callback.
    """

    name: str
    repository: str | None
    commit: str | None
    entrypoint: str
    config: str
    import_root: str | None
    spawns_ranks: bool
    objective: str | None
    extra_steps: int = 0
    step_key: str = "global_step"
    watcher: str | None = None


@dataclass(frozen=True)
class Evidence:
    """Where the locked numbers come from, and what the release says where it says otherwise."""

    source: str
    release: str | None = None
    release_steps: int | None = None


@dataclass(frozen=True)
class Teacher:
    """The base recipe whose completed run on the same dataset a distilled recipe learns from."""

    recipe: str
    family: str
    adapter: str | None


@dataclass(frozen=True)
class StudentInit:
    """What the student may start from; ``snapshot`` is what SNAPSHOT_INIT needs locally."""

    default: str
    allowed: tuple[str, ...]
    snapshot: Snapshot


@dataclass(frozen=True)
class Limit:
    """The most that a geometry may have of something, and why (the rest of a sentence)."""

    most: int
    reason: str


@dataclass(frozen=True)
class Departure:
    """Something a route needs beyond its locked table; it never changes a locked key.

    ``kind`` is ``override`` or ``environment``.
    """

    key: str
    value: Value
    reason: str
    kind: str = "override"

    def to_json(self) -> dict[str, Value]:
        return {"key": self.key, "value": self.value, "reason": self.reason}


@dataclass(frozen=True)
class Disclosure:
    """Where the locked numbers differ from what the upstream says; it changes nothing."""

    subject: str
    difference: str


@dataclass(frozen=True)
class Resume:
    """What a resumed run goes on with exactly, and what it begins anew."""

    exact: tuple[str, ...]
    anew: tuple[str, ...]


@dataclass(frozen=True)
class Unverified:
    """Why some overrides of a recipe are not proved, and the config groups that they belong to."""

    reason: str
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Trial:
    """The sizes of a trial, by name, and the overrides that use them.

    ``dataset`` is the small dataset that it trains on instead, None for the recipe's own.
    ``accelerator`` is the one at hand: ``cuda`` or ``cpu``.
    """

    sizes: Mapping[str, int]
    overrides: Mapping[str, Value]
    dataset: Dataset | None = None
    accelerator: str = "cuda"


@dataclass(frozen=True)
class Recipe:
    """What to train: one recipe on one dataset, every number locked.

    ``steps`` is None for one epoch, ``milestone_every`` None for quarters, ``selected_step`` None
    for the last step. ``overrides`` and ``environment`` may hold placeholders. ``trial`` is None
    but for a trial, whose sizes then stand in the other fields; ``trial_defaults`` is what a trial
    of this recipe starts from.
    """

    name: str
    summary: str
    dataset: Dataset
    datasets: tuple[str, ...]
    refused_datasets: Mapping[str, str]
    upstream: Upstream
    evidence: Evidence

    steps: int | None
    global_batch: int
    learning_rate: float
    warmup_steps: int
    optimizer: str
    precision: str
    milestone_every: int | None
    rounds: int | None
    steps_per_round: int | None
    selected_step: int | None
    loss: str | None
    seed: int

    per_device_batch: int
    gpus_per_node: int
    nodes: int
    limits: Mapping[str, Limit]

    teacher: Teacher | None
    student_init: StudentInit | None
    adapter: str | None
    data_source: str
    selected_checkpoint: str
    export_bf16: bool
    num_workers: int
    unverified: Unverified | None
    resume: Resume

    overrides: Mapping[str, Value]
    environment: Mapping[str, str]
    departures: tuple[Departure, ...]
    disclosures: tuple[Disclosure, ...]
    trial_defaults: Trial | None
    trial: Trial | None = None

    @property
    def max_nodes(self) -> int | None:
        return self.limits["nodes"].most if "nodes" in self.limits else None

    @property
    def max_per_device_batch(self) -> int | None:
        limit = self.limits.get("per_device_batch")
        return limit.most if limit else None

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_json(cls, data: object, where: str = "the recipe") -> Recipe:
        """Raises :class:`dlbhpc.records.RecordError` for data of another shape."""
        return from_plain(cls, data, where)
