"""How a global batch is spread over nodes, GPUs and accumulation steps, and what a run's plan is.

A batch is exact when

    global batch = nodes x GPUs per node x per-device batch x accumulation steps

with whole numbers everywhere. Anything else is refused: a batch is never reduced or rounded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from dlbhpc.errors import DlbhpcError

MAX_GPUS_PER_NODE = 8
"""How many GPUs of one node an enumeration considers when the user names no number."""

_NAMED = 3
"""How many exact geometries an error names."""


class InexactBatch(DlbhpcError):
    """The global batch cannot be reached exactly with the geometry asked for."""


@dataclass(frozen=True, order=True)
class Geometry:
    """One exact way to reach a global batch.

    The fields stand in the order of preference: fewer accumulation steps first, then fewer nodes,
    then fewer GPUs.
    """

    accumulation: int
    nodes: int
    gpus_per_node: int
    per_device_batch: int

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            require_positive(name, value)

    @property
    def world(self) -> int:
        """The number of processes, one per GPU."""
        return self.nodes * self.gpus_per_node

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step, over all processes."""
        return self.world * self.per_device_batch * self.accumulation

    def __str__(self) -> str:
        return (
            f"{self.nodes} node{'s' * (self.nodes > 1)} x {self.gpus_per_node} "
            f"GPU{'s' * (self.gpus_per_node > 1)} x {self.per_device_batch} per device "
            f"x {self.accumulation} accumulation"
        )


def require_positive(name: str, value: object) -> int:
    """``value`` when it is a whole number of at least 1; :class:`DlbhpcError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DlbhpcError(f"{name} is {value!r}: it must be a whole number of at least 1")
    return value


def solve(
    global_batch: int,
    nodes: int,
    gpus_per_node: int,
    per_device_batch: int,
    *,
    max_nodes: int | None = None,
    max_per_device_batch: int | None = None,
) -> Geometry:
    """The geometry with these sizes and the accumulation that reaches ``global_batch`` exactly.

    Raises :class:`InexactBatch`, which names the nearest exact geometries, when there is none. The
    two limits only bound what the error proposes.
    """
    require_positive("the global batch", global_batch)
    require_positive("the number of nodes", nodes)
    require_positive("the number of GPUs per node", gpus_per_node)
    require_positive("the per-device batch", per_device_batch)
    per_step = nodes * gpus_per_node * per_device_batch
    if global_batch % per_step == 0:
        return Geometry(global_batch // per_step, nodes, gpus_per_node, per_device_batch)
    near = nearest_geometries(
        global_batch, nodes, gpus_per_node, per_device_batch, max_nodes, max_per_device_batch
    )
    fraction = f"{global_batch} / {per_step}"
    raise InexactBatch(
        f"the global batch {global_batch} is not exact on {nodes} x {gpus_per_node} GPUs with "
        f"{per_device_batch} per device: the accumulation {fraction} is not a whole number of at "
        "least 1, and a batch is never reduced. Nearest exact: " + "; ".join(map(str, near))
    )


def exact_geometries(
    global_batch: int,
    max_nodes: int,
    gpus_per_node: int | None = None,
    max_per_device_batch: int | None = None,
) -> list[Geometry]:
    """Every exact geometry within the limits, best first.

    Best means fewest accumulation steps, then fewest nodes, then fewest GPUs per node. Without
    ``gpus_per_node`` nodes of 1 to :data:`MAX_GPUS_PER_NODE` GPUs are considered.
    """
    require_positive("the global batch", global_batch)
    require_positive("the largest number of nodes", max_nodes)
    if gpus_per_node is not None:
        require_positive("the number of GPUs per node", gpus_per_node)
    if max_per_device_batch is not None:
        require_positive("the largest per-device batch", max_per_device_batch)
    gpu_counts = range(1, MAX_GPUS_PER_NODE + 1) if gpus_per_node is None else (gpus_per_node,)
    return sorted(
        Geometry(share // batch, nodes, gpus, batch)
        for nodes in range(1, min(max_nodes, global_batch) + 1)
        for gpus in gpu_counts
        if global_batch % (nodes * gpus) == 0
        for share in (global_batch // (nodes * gpus),)
        for batch in _divisors(share)
        if max_per_device_batch is None or batch <= max_per_device_batch
    )


def nearest_geometries(
    global_batch: int,
    nodes: int,
    gpus_per_node: int,
    per_device_batch: int,
    max_nodes: int | None = None,
    max_per_device_batch: int | None = None,
) -> list[Geometry]:
    """The few exact geometries nearest to the sizes asked for, nearest first.

    The shape of the allocation is kept where it can be (another per-device batch is the easiest
    change to make), then the number of GPUs.
    """
    reach = max(2 * nodes, MAX_GPUS_PER_NODE)
    found = [
        geometry
        for gpus in range(1, min(global_batch, max(2 * gpus_per_node, MAX_GPUS_PER_NODE)) + 1)
        for geometry in exact_geometries(
            global_batch,
            min(reach, max_nodes or reach),
            gpus,
            max_per_device_batch or max(per_device_batch, 1),
        )
    ]

    def distance(geometry: Geometry) -> tuple[int, ...]:
        return (
            abs(geometry.world - nodes * gpus_per_node),
            abs(geometry.nodes - nodes),
            abs(geometry.gpus_per_node - gpus_per_node),
            abs(geometry.per_device_batch - per_device_batch),
        )

    return sorted(found, key=distance)[:_NAMED]


def check_eval_batch(eval_batch: int, geometry: Geometry) -> None:
    """Refuse a global evaluation batch that the devices cannot share equally."""
    require_positive("the global evaluation batch", eval_batch)
    if eval_batch % geometry.world:
        below = eval_batch - eval_batch % geometry.world
        legal = [size for size in (below, below + geometry.world) if size]
        raise InexactBatch(
            f"the global evaluation batch {eval_batch} is not divisible by the {geometry.world} "
            f"devices of {geometry}. Nearest legal: {', '.join(map(str, legal))}"
        )


@dataclass(frozen=True)
class EpochPlan:
    """One epoch in whole optimizer steps: each sample once, none dropped, none repeated.

    Every step takes ``global_batch`` samples but the last, which takes ``tail``.
    """

    samples: int
    world: int
    per_gpu: int
    accumulation: int
    global_batch: int
    steps: int
    tail: int
    quarter_steps: tuple[int, ...]

    @property
    def sha256(self) -> str:
        """The digest of the plan as written (canonical JSON)."""
        return _digest({"kind": "epoch", **asdict(self)})


def epoch_plan(samples: int, world: int, per_gpu: int, accumulation: int = 1) -> EpochPlan:
    """The plan of one epoch over ``samples``.

    ``per_gpu`` is what one process takes at a time, so that a full optimizer step has
    ``world * per_gpu * accumulation`` samples. Refused unless the last step has at least one real
    sample for every process and accumulation step: nothing is padded or dropped.
    """
    require_positive("the number of samples", samples)
    require_positive("the world size", world)
    require_positive("the per-device batch", per_gpu)
    require_positive("the accumulation", accumulation)
    batch = world * per_gpu * accumulation
    steps = -(-samples // batch)
    tail = samples - (steps - 1) * batch
    if tail < world * accumulation:
        raise DlbhpcError(
            f"{samples} samples in batches of {batch} leave {tail} for the last step, fewer than "
            f"the {world * accumulation} that {world} processes x {accumulation} accumulation need "
            "to have one each: choose another world size or per-device batch"
        )
    return EpochPlan(samples, world, per_gpu, accumulation, batch, steps, tail, _quarters(steps))


@dataclass(frozen=True)
class StepPlan:
    """A run of a fixed number of optimizer steps."""

    steps: int
    global_batch: int
    milestone_every: int | None

    @property
    def milestones(self) -> tuple[int, ...]:
        """The steps whose state is kept for good; the last step always is one."""
        if self.milestone_every is None:
            return _quarters(self.steps)
        every = self.milestone_every
        return tuple(sorted({*range(every, self.steps + 1, every), self.steps}))

    @property
    def sha256(self) -> str:
        """The digest of the plan as written (canonical JSON)."""
        return _digest({"kind": "steps", **asdict(self)})


def step_plan(steps: int, global_batch: int, milestone_every: int | None = None) -> StepPlan:
    """The plan of ``steps`` optimizer steps of ``global_batch`` samples.

    Without ``milestone_every`` the milestones are the quarters, as in one epoch.
    """
    require_positive("the number of steps", steps)
    require_positive("the global batch", global_batch)
    if milestone_every is not None:
        require_positive("the milestone interval", milestone_every)
    return StepPlan(steps, global_batch, milestone_every)


def _quarters(steps: int) -> tuple[int, ...]:
    return tuple(sorted({-(-steps * quarter // 4) for quarter in (1, 2, 3, 4)}))


def _divisors(number: int) -> Iterator[int]:
    return (size for size in range(1, number + 1) if number % size == 0)


def _digest(plan: dict[str, object]) -> str:
    text = json.dumps(plan, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
