"""What this machine means for a run: one small pure function for each thing that was probed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dlbhpc.scheduler.findings import NOTE, OK, PROBLEM, Finding
from dlbhpc.scheduler.host import Answer, SharedTrial, TrialWrite

NETWORK_FILE_SYSTEMS = frozenset(
    "nfs nfs4 lustre gpfs beegfs ceph cifs smb3 panfs pvfs2 orangefs wekafs glusterfs "
    "fuse.glusterfs fuse.cephfs fuse.juicefs fuse.sshfs afs gfs2 ocfs2 9p virtiofs".split()
)
"""Types that several machines may have mounted at once."""

CHECKPOINTS_AT_ONCE = 3
"""The two that are kept and the one that is being written."""


@dataclass(frozen=True)
class Host:
    """What was found here. None: not looked at, since it does not matter here.

    ``file_system`` is the type of the project root's; ``checkpoint_bytes`` the largest training
    state that was saved (None: none yet). ``mounts`` are the ways in which an image can be mounted
    here; ``wanted_container`` and ``wanted_mount`` are the profile's if its runs go through images,
    and ``modules`` says that it loads some before.
    """

    root: str
    slurm: bool
    file_system: str
    write: TrialWrite
    checkpoint_bytes: int | None = None
    controller: Answer | None = None
    munge: Answer | None = None
    container: tuple[str, Answer] | None = None
    mounts: tuple[str, ...] = ()
    wanted_container: str | None = None
    wanted_mount: str | None = None
    modules: bool = False
    shared: SharedTrial | None = None


HostCheck = Callable[[Host], "Finding | None"]
"""Gives None where there is nothing to say."""


def check_controller(host: Host) -> Finding:
    """Whether Slurm answers."""
    if not host.slurm or host.controller is None:
        return Finding(
            OK, "the profile's jobs run on this machine", "Slurm is not needed, and was not asked"
        )
    if not host.controller.ok:
        return Finding(
            PROBLEM,
            f"slurmctld does not answer: {host.controller.words}",
            "nothing can be submitted, and status can only say `unknown`",
            "run on a login node of the cluster, or use --cluster local",
        )
    return Finding(OK, host.controller.words, "jobs can be submitted and asked for")


def check_munge(host: Host) -> Finding | None:
    """Whether this machine's identity is accepted."""
    if host.munge is None:
        return None
    if host.munge.status is None:
        return Finding(
            NOTE, f"munge cannot be tried: {host.munge.words}", "Slurm's own answer has to do"
        )
    if not host.munge.ok:
        return Finding(
            PROBLEM,
            f"munge does not work: {host.munge.words}",
            "Slurm refuses every command from this machine",
            "have munged started here, with the cluster's key and a clock that is right",
        )
    return Finding(
        OK, "a credential was made and read back", "Slurm accepts this machine's commands"
    )


def check_shared(host: Host) -> Finding:
    """Whether the nodes see the project root."""
    found = f"{host.root} lies on {host.file_system}"
    if not host.slurm:
        return Finding(OK, found, "jobs run on this machine, which sees it")
    trial = host.shared
    if trial is None:
        kind = (
            "a type that is shared, if the nodes have mounted it"
            if host.file_system in NETWORK_FILE_SYSTEMS
            else "a type that usually belongs to one machine"
        )
        return Finding(
            NOTE,
            f"{found}, {kind}",
            "whether the nodes see it cannot be known from here",
            "`doctor --run-job` tries it with a small job",
        )
    if trial.error:
        return Finding(
            NOTE,
            f"{found}; the trial job did not run: {trial.error}",
            "whether the nodes see it is not known",
            "try again when nodes are free",
        )
    if trial.read < trial.nodes or trial.written < trial.nodes:
        return Finding(
            PROBLEM,
            f"{found}; {trial.read} of {trial.nodes} nodes read a file that was written here, and "
            f"what {trial.written} of them wrote is seen here",
            "attempts on the others would neither find the run nor leave checkpoints",
            "choose a --root on a file system that all nodes share",
        )
    return Finding(
        OK,
        f"{found}; {trial.nodes} node{'s' * (trial.nodes > 1)} read and wrote it",
        "the nodes see the runs",
    )


def check_space(host: Host) -> Finding:
    """Whether a checkpoint can be written: free space, and a quota that only a write shows."""
    write = host.write
    found = f"{_size(write.free_bytes)} free; {_size(write.bytes)} written as a trial"
    if write.error:
        return Finding(
            PROBLEM,
            f"a trial write of {_size(write.bytes)} failed: {write.error} "
            f"({_size(write.free_bytes)} free)",
            "checkpoints cannot be written: a run would end with the reason `storage`",
            "free space or have the quota raised, whatever df says",
        )
    if host.checkpoint_bytes is None:
        return Finding(OK, found, "how large a checkpoint is will be known after the first save")
    needed = CHECKPOINTS_AT_ONCE * host.checkpoint_bytes
    if write.free_bytes < needed:
        return Finding(
            PROBLEM,
            f"{found}; a checkpoint takes {_size(host.checkpoint_bytes)}",
            f"a run holds up to {CHECKPOINTS_AT_ONCE} of them at once, {_size(needed)}",
            "free space before you submit",
        )
    return Finding(
        OK,
        f"{found}; a checkpoint takes {_size(host.checkpoint_bytes)}",
        f"there is room for the {CHECKPOINTS_AT_ONCE} that a run holds at once",
    )


def check_container(host: Host) -> Finding:
    """Whether frozen images can run here."""
    if host.container is None and host.wanted_container is not None:
        return Finding(
            NOTE if host.modules else PROBLEM,
            f"{host.wanted_container} is not on PATH here, and the profile's runs go through it",
            "how images can be mounted is not known here"
            if host.modules
            else "no run would start on nodes like this machine",
            "load the profile's modules, then ask again"
            if host.modules
            else "where the site offers it as a module, name that in the profile (modules)",
        )
    if host.container is None:
        return Finding(
            NOTE,
            "neither apptainer nor singularity is on PATH here",
            "images of the upstreams cannot be built or run here; the bundled recipe needs none",
            "where the site offers it as a module, name that in the profile (modules)",
        )
    name, version = host.container
    if not version.ok:
        return Finding(
            PROBLEM,
            f"{name} does not run: {version.words}",
            "images cannot be used",
            "have it mended, or load another version",
        )
    return Finding(OK, version.words, "images can be run")


def check_mounts(host: Host) -> Finding | None:
    """Whether images can be mounted as the profile says."""
    if host.container is None or not host.container[1].ok:
        return None
    wanted = host.wanted_mount
    found = f"images can be mounted here by: {', '.join(host.mounts) or 'no means'}"
    if not host.mounts or (wanted and wanted not in host.mounts):
        return Finding(
            PROBLEM if wanted else NOTE,
            found,
            f"the profile says {wanted}: no run would start on nodes like this machine"
            if wanted
            else "images cannot be used on nodes like this machine",
            f"container_mount: {host.mounts[0]}" if host.mounts else "ask for user namespaces",
        )
    if wanted == "fuse":
        return Finding(
            NOTE,
            found,
            "a signal to every process of a step ends the helper that mounts the image: a save "
            "that is asked for in this way may fail, and the run goes on from the one before",
            "container_mount: unpacked, with a scratch folder that has room for the image",
        )
    return Finding(OK, found, "a request to stop leaves the image in place")


HOST_CHECKS: dict[str, HostCheck] = {
    "controller": check_controller,
    "munge": check_munge,
    "shared folder": check_shared,
    "space": check_space,
    "containers": check_container,
    "image mounts": check_mounts,
}


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
