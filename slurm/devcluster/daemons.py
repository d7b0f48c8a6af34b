"""Processes of a dev cluster: started, found and ended by process id and start time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.scheduler.processes import ProcessId, marked
from slurm.devcluster.config import ClusterConfig
from slurm.devcluster.wait import wait_until

# Daemons lie where a user's PATH need not look.
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

_PACKAGES = {
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sbatch": "slurm-wlm",
    "munged": "munge",
    "unshare": "util-linux",
    "hostname": "hostname",
}
_ACCOUNTING_PACKAGES = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
}

# Each daemon gets a host name and a hosts file of its own, so that nodes look like machines.
_ENTER_HOST = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


def unmet_requirement(config: ClusterConfig) -> str | None:
    """What keeps a dev cluster from running on this machine, as a sentence; None if nothing."""
    wanted = _PACKAGES | (_ACCOUNTING_PACKAGES if config.accounting else {})
    missing = [name for name in wanted if shutil.which(name, path=_PATH) is None]
    if missing:
        packages = " ".join(dict.fromkeys(wanted[name] for name in missing))
        return (
            f"a dev cluster needs {', '.join(missing)}, not found here: "
            f"apt-get install --no-install-recommends {packages} (Debian's names)"
        )
    if os.geteuid() != 0:
        return "a dev cluster runs as root only, since its nodes get host names of their own"
    if subprocess.run(["unshare", "--mount", "--uts", "true"], capture_output=True).returncode:
        return (
            "a dev cluster needs to make mount and UTS namespaces, and this machine does not let "
            "root do so: if it is a container, start that with --privileged"
        )
    return None


def program(name: str) -> str:
    """The path of a program that unmet_requirement has found."""
    path = shutil.which(name, path=_PATH)
    if path is None:
        raise DlbhpcError(f"{name} has gone from this machine: install its package again")
    return path


def on_host(name: str, hosts: Path, command: list[str]) -> list[str]:
    """The command, run under that host name and with that hosts file; it keeps its process id."""
    enter = ["unshare", "--mount", "--propagation", "slave", "--uts"]
    return [*enter, "sh", "-c", _ENTER_HOST, "sh", str(hosts), name, *command]


def spawn(command: list[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a daemon that outlives this process and its terminal."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            start_new_session=True,
        )


def kill(processes: Iterable[ProcessId]) -> None:
    """Send SIGKILL to each that lives, and to no other process that got its number meanwhile."""
    for process in processes:
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        try:
            if process.alive():
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)


def kill_all(find: Callable[[], set[ProcessId]], what: str) -> None:
    """Kill what ``find`` finds until it finds nothing more: a process may have forked meanwhile."""

    def gone() -> bool:
        found = find()
        kill(found)
        return not found

    wait_until(gone, f"{what} to end")


def processes_of_jobs(cluster_name: str, log: Path) -> set[ProcessId]:
    """Step daemons of the cluster, and every process of its jobs, ghosts of lost nodes too.

    A job's processes carry the cluster's name, or (a container may have cleared the environment)
    descend from one that does or from a step daemon.
    """
    steps = _programs_logging("slurmstepd", log)
    return _identify(_with_descendants({*steps, *marked("SLURM_CLUSTER_NAME", cluster_name)}))


def processes_of_cluster(cluster_name: str, log: Path) -> set[ProcessId]:
    """The jobs' processes, and whatever Slurm's daemons have forked."""
    return processes_of_jobs(cluster_name, log) | _identify(_programs_logging("slurm", log))


def _programs_logging(prefix: str, log: Path) -> list[int]:
    # A step daemon overwrites its environment and leaves its slurmd's process tree, but like
    # every other fork of a daemon it keeps the log open.
    return [pid for pid in _pids() if _program_name(pid).startswith(prefix) and _writes(pid, log)]


def _identify(pids: Iterable[int]) -> set[ProcessId]:
    found = (ProcessId.of(pid) for pid in pids if pid != os.getpid())
    return {process for process in found if process is not None}


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208


def _program_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


def _writes(pid: int, folder: Path) -> bool:
    try:
        targets = [path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return any(folder in target.parents for target in targets)


def _with_descendants(roots: Iterable[int]) -> set[int]:
    children = defaultdict(list)
    for pid in _pids():
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        children[int(text.rpartition(")")[2].split()[1])].append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children[pid])
    return found
