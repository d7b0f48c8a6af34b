"""What a Slurm cluster's configuration means for a run: one small pure function for each question.

The sentences name the setting as slurm.conf does, so that a site's administrators know it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dlbhpc import exit_status
from dlbhpc.scheduler.cluster import (
    DEFAULT_BATCH_REQUEUE,
    Configuration,
    partition_of,
    preemption_of,
)
from dlbhpc.scheduler.findings import NOTE, OK, PROBLEM, Finding
from dlbhpc.scheduler.profile import Profile
from dlbhpc.scheduler.times import format_time, parse_time

NOTICE_SECONDS = 2.0
"""From a request until the ranks save: the stop file is looked for once a second, between steps."""

_LONG_CREDENTIAL_SECONDS = 60


@dataclass(frozen=True)
class Site:
    """A cluster, the profile whose jobs go there, and how long a save takes (None: unknown)."""

    profile: Profile
    configuration: Configuration
    save_seconds: float | None = None


Check = Callable[[Site], Finding]


def check_partition(site: Site) -> Finding:
    """Whether the profile's partition is there and takes jobs as long as the profile's."""
    partition = partition_of(site.configuration, site.profile)
    names = ", ".join(item.name for item in site.configuration.partitions)
    if partition is None:
        wanted = site.profile.partition or "default partition"
        return Finding(
            PROBLEM,
            f"no {wanted} among {names}",
            "no job of this profile can start",
            f"set partition in the profile {site.profile.name}",
        )
    if not partition.is_up:
        return Finding(
            PROBLEM,
            f"partition {partition.name} is not up",
            "jobs wait until the site opens it",
            "choose another partition, or wait",
        )
    limit = site.profile.time and parse_time(site.profile.time)
    if limit and partition.max_seconds and limit > partition.max_seconds:
        return Finding(
            PROBLEM,
            f"the profile asks for {site.profile.time}, partition {partition.name} allows "
            f"{format_time(partition.max_seconds)} (MaxTime)",
            "Slurm leaves such a job pending for ever rather than refuse it",
            f"set time: {format_time(partition.max_seconds)} or less",
        )
    return Finding(
        OK,
        f"partition {partition.name}, time limit {format_time(partition.max_seconds)}",
        "a run longer than one job's time goes on in the next",
    )


def check_preemption(site: Site) -> Finding:
    """What preemption does to a job: requeued, cancelled, or nothing."""
    preemption = preemption_of(site.configuration, site.profile)
    found = f"PreemptMode={preemption.mode} by {preemption.source}"
    if preemption.mode == "REQUEUE":
        return Finding(OK, found, "Slurm puts a preempted job back into its queue by itself")
    if preemption.mode == "CANCEL" and preemption.grace_seconds == 0:
        return Finding(
            PROBLEM,
            f"{found}, without grace",
            "a preempted job is killed and does not come back (--requeue does nothing here): "
            "status shows `needs resubmit`, and every preemption needs a `submit`",
            "use a partition or QOS with PreemptMode=REQUEUE, or ask the site for a GraceTime",
        )
    if preemption.mode == "CANCEL":
        return Finding(
            NOTE,
            found,
            "a preempted job does not come back by itself (--requeue does nothing here): its batch "
            "script saves and submits the run again within the grace time; killed before that, "
            "status shows `needs resubmit`",
            "where you can choose, use a partition or QOS with PreemptMode=REQUEUE",
        )
    if preemption.mode == "SUSPEND":
        return Finding(OK, found, "a preempted job is stopped in its place and goes on later")
    return Finding(OK, found, "jobs are not preempted")


def check_killers(site: Site) -> Finding:
    """Whatever kills a job after it was asked to stop, against the time that a save takes."""
    killers = sorted(_killers(site))
    chain = ", ".join(f"{name} {seconds} s" for seconds, name in killers)
    shortest, name = killers[0]
    if shortest == 0:
        return Finding(
            PROBLEM,
            f"shortest first: {chain}",
            f"{name}: a job gets no time to save, so each time up to "
            f"{site.profile.save_every_minutes} minutes of training are made again",
            "ask the site for a GraceTime, or set save_every_minutes lower",
        )
    if site.save_seconds is None:
        return Finding(
            NOTE,
            f"shortest first: {chain}; how long a save takes is not measured yet",
            f"a save must take less than {shortest} s ({name}), or the steps since the last are "
            "made again",
            "look again after the first run's first save",
        )
    needed = site.save_seconds + NOTICE_SECONDS
    found = f"shortest first: {chain}; a save takes {site.save_seconds:.1f} s"
    too_short = [f"{name} ({seconds} s)" for seconds, name in killers if seconds < needed]
    if too_short:
        return Finding(
            PROBLEM,
            found,
            f"too short to save in: {', '.join(too_short)}; the steps since the last save are "
            "made again",
            f"ask the site for at least {needed:.0f} s, or set save_every_minutes lower",
        )
    return Finding(OK, found, "there is time to save, whichever of them comes")


def _killers(site: Site) -> Iterator[tuple[int, str]]:
    """Seconds from the request to the kill, and who kills."""
    configuration, profile = site.configuration, site.profile
    preemption = preemption_of(configuration, profile)
    if preemption.mode in ("REQUEUE", "CANCEL"):
        yield preemption.grace_seconds, f"GraceTime at preemption ({preemption.source})"
    yield configuration.number("KillWait", 30), "KillWait after scancel"
    yield profile.grace_seconds, "--signal before the time limit (grace_seconds)"


def check_signal(site: Site) -> Finding:
    """How the request to stop arrives at a preemption."""
    if preemption_of(site.configuration, site.profile).mode == "OFF":
        return Finding(OK, "no preemption", "a stop is asked for by `dlbhpc` and by --signal only")
    if site.configuration.sends_user_signal:
        return Finding(
            OK, "send_user_signal is on", "the batch script hears of a preemption, and then saves"
        )
    return Finding(
        OK,
        "send_user_signal is off",
        "a preemption sends TERM to the training itself, which then saves",
    )


def check_requeue(site: Site) -> Finding:
    """Whether a job may go back into the queue, how often, and after which exit status."""
    configuration = site.configuration
    ours = {
        name: status
        for name, status in vars(exit_status).items()
        if name.isupper() and isinstance(status, int)
    }
    for key in ("RequeueExitHold", "RequeueExit"):
        taken = _statuses(configuration.text(key))
        clash = sorted(status for status in ours.values() if status in taken)
        if clash:
            what = "holds" if key == "RequeueExitHold" else "requeues"
            return Finding(
                PROBLEM,
                f"{key}={configuration.text(key)}",
                f"Slurm {what} a job that ends with {', '.join(map(str, clash))}, which our batch "
                "script uses with another meaning",
                "ask the site to leave these exit statuses out",
            )
    most = configuration.number("MaxBatchRequeue", DEFAULT_BATCH_REQUEUE)
    default = "" if configuration.number("JobRequeue") else " (off, but jobs ask for --requeue)"
    return Finding(
        OK,
        f"JobRequeue={configuration.number('JobRequeue')}{default}, MaxBatchRequeue={most}"
        + ("" if configuration.text("MaxBatchRequeue") else " (Slurm's default)"),
        f"a job whose launch fails {most} times is held: status says so, and how to release it",
    )


def _statuses(text: str) -> set[int]:
    """1,5-10 as a set."""
    found: set[int] = set()
    for word in text.split(","):
        first, _, last = word.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found.update(range(int(first), int(last or first) + 1))
    return found


def check_credential(site: Site) -> Finding:
    """How long a requeued job waits for its old credential to expire."""
    seconds = site.configuration.cred_expire_seconds
    found = f"AuthInfo cred_expire={seconds}"
    means = f"a requeued job waits up to {seconds} s before it can start again (BeginTime)"
    return Finding(NOTE if seconds >= _LONG_CREDENTIAL_SECONDS else OK, found, means)


def check_log(site: Site) -> Finding:
    """Whether a requeue keeps the log."""
    append = site.configuration.number("JobFileAppend")
    means = "logs are kept over a requeue: jobs ask for --open-mode=append"
    return Finding(OK, f"JobFileAppend={append}", means)


def check_memory_of_jobs(site: Site) -> Finding:
    """How long Slurm knows why a job ended that could not say so itself."""
    age = site.configuration.number("MinJobAge", 300)
    if site.configuration.has_accounting:
        return Finding(OK, "accounting is kept", "status can tell why a job ended without a word")
    return Finding(
        NOTE,
        f"no accounting; MinJobAge={age}",
        f"{age} s after a job was killed without a warning nobody can tell why: status then says "
        "`interrupted`",
    )


def check_gpus(site: Site) -> Finding:
    """Whether the partition's nodes have the GPUs that the profile asks for."""
    partition = partition_of(site.configuration, site.profile)
    name = partition.name if partition else ""
    nodes = [node for node in site.configuration.nodes if name in node.partitions]
    wanted, kind = site.profile.gpus_per_node or 1, site.profile.gpu_type
    asked = f"{kind + ' ' if kind else ''}GPUs"
    having = [
        node
        for node in nodes
        if (node.gpus.get(kind, 0) if kind else sum(node.gpus.values())) >= wanted
    ]
    most = max((sum(node.gpus.values()) for node in nodes), default=0)
    if not having:
        return Finding(
            PROBLEM,
            f"no node of {name or 'the partition'} has {wanted} {asked} (the most is {most})",
            "no job of this profile can start",
            "set gpus_per_node and gpu_type to what the nodes have, or choose another partition",
        )
    return Finding(
        OK,
        f"{len(having)} of {len(nodes)} nodes of {name} have {wanted} {asked} or more",
        "a run's nodes x GPUs may be up to that",
    )


def check_tracking(site: Site) -> Finding:
    """Whether anything of a job can outlive it."""
    plugin, tasks = site.configuration.text("ProctrackType"), site.configuration.text("TaskPlugin")
    found = f"ProctrackType={plugin}, TaskPlugin={tasks or 'none'}"
    if "cgroup" in plugin:
        return Finding(OK, found, "no process of a job outlives it on a node that is up")
    return Finding(
        NOTE,
        found,
        "a process may outlive its job; what it then writes is fenced off and not resumed from",
    )


SLURM_CHECKS: dict[str, Check] = {
    "partition": check_partition,
    "gpus": check_gpus,
    "preemption": check_preemption,
    "time to save": check_killers,
    "stop signal": check_signal,
    "requeue": check_requeue,
    "requeue delay": check_credential,
    "log": check_log,
    "accounting": check_memory_of_jobs,
    "leftovers": check_tracking,
}
