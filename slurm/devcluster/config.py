"""What a dev cluster is like: its nodes, its partitions, and the settings that matter to a run."""

from __future__ import annotations

from dataclasses import dataclass

from dlbhpc.errors import DlbhpcError

MOST_NODES = 60


@dataclass(frozen=True)
class Partition:
    """One line of slurm.conf. A job of a higher tier preempts those of lower tiers."""

    name: str
    tier: int
    preempt_mode: str = "OFF"
    grace: bool = False
    max_minutes: int | None = None


PARTITIONS = (
    Partition("requeue", tier=10, preempt_mode="REQUEUE", grace=True),
    Partition("requeue-now", tier=10, preempt_mode="REQUEUE"),
    Partition("cancel", tier=10, preempt_mode="CANCEL", grace=True),
    Partition("cancel-now", tier=10, preempt_mode="CANCEL"),
    Partition("high", tier=100),
    Partition("short", tier=10, max_minutes=3),
)
"""Every partition holds all nodes; the first is the default one."""


@dataclass(frozen=True)
class ClusterConfig:
    """Settings of a dev cluster; each stands in slurm.conf under the name that the comment gives.

    The nodes claim more CPUs and memory than the machine has, so many jobs fit side by side.
    """

    nodes: int = 4
    gpus_per_node: int = 4
    cpus_per_node: int = 64
    memory_megabytes: int = 64_000
    grace_seconds: int = 10  # GraceTime, of the partitions that have one
    kill_wait_seconds: int = 5  # KillWait: from SIGTERM to SIGKILL
    slurmd_timeout_seconds: int = 10  # SlurmdTimeout: a silent node is down after it
    job_requeue: bool = True  # JobRequeue: what sbatch without --requeue means
    send_user_signal: bool = False  # preempt_send_user_signal: --signal at preemption too
    accounting: bool = False  # slurmdbd and MariaDB, so that sacct answers

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MOST_NODES:
            raise DlbhpcError(
                f"a dev cluster cannot have {self.nodes} nodes; choose 1 to {MOST_NODES}"
            )
        for name in ("gpus_per_node", "cpus_per_node", "memory_megabytes"):
            if getattr(self, name) < 1:
                raise DlbhpcError(f"{name} of a dev cluster must be at least 1")

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(1, self.nodes + 1))
