"""A real Slurm of several nodes on this machine, for development and for tests."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.scheduler.processes import ProcessId
from slurm.devcluster import accounting, daemons, munge
from slurm.devcluster.config import ClusterConfig
from slurm.devcluster.place import (
    CONTROLLER,
    Place,
    check_folder,
    choose_block,
    listens,
    write_files,
)
from slurm.devcluster.wait import wait_until

_RECORD = "cluster.json"
_COMMAND_SECONDS = 120
# A trailing mark, as in idle*, means that the controller has not heard from the node.
_UP = re.compile("idle|mixed|allocated|completing")


class Cluster:
    """A running dev cluster: munged, slurmctld and one slurmd for each node.

    It outlives the process that started it; :meth:`load` finds it again by its folder.
    """

    def __init__(
        self, place: Place, config: ClusterConfig, processes: dict[str, ProcessId]
    ) -> None:
        self.place = place
        self.config = config
        self._processes = processes  # by the daemon's name: munged, slurmctld, n1, …
        self._children: dict[str, subprocess.Popen[bytes]] = {}  # of this process, to be reaped

    @classmethod
    def start(cls, folder: Path, config: ClusterConfig | None = None) -> Cluster:
        """Start a cluster in the folder and wait until every node is idle.

        Raises DlbhpcError where this machine lacks something, where the folder holds anything but
        a dead cluster, and where a daemon fails (then the folder keeps the logs).
        """
        config = config or ClusterConfig()
        unmet = daemons.unmet_requirement(config)
        if unmet is not None:
            raise DlbhpcError(unmet)
        folder = folder.absolute()
        check_folder(folder)
        with _one_start_at_a_time():
            if (folder / _RECORD).exists():
                left_over = cls.load(folder)
                if left_over.running():
                    raise DlbhpcError(f"a dev cluster runs in {folder} already: stop it first")
                left_over.stop()
            elif folder.exists() and any(folder.iterdir()):
                raise DlbhpcError(
                    f"{folder} holds something else: choose an empty folder for the dev cluster"
                )
            folder.mkdir(parents=True, exist_ok=True)
            place = Place(folder, f"dev{secrets.token_hex(4)}", choose_block())
            cluster = cls(place, config, {})
            cluster._record()
            write_files(place, config)
            try:
                cluster._start_daemons()
            except BaseException:
                cluster._kill_everything()
                raise
        return cluster

    @classmethod
    def load(cls, folder: Path) -> Cluster:
        """The cluster that was started in the folder; DlbhpcError where there is none."""
        folder = folder.absolute()
        try:
            record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DlbhpcError(f"no dev cluster was started in {folder}") from None
        return cls(
            Place(folder, record["name"], record["block"]),
            ClusterConfig(**record["config"]),
            {name: ProcessId(**process) for name, process in record["processes"].items()},
        )

    @property
    def env(self) -> dict[str, str]:
        """What a command needs in its environment besides the usual, to talk to this cluster."""
        return {"SLURM_CONF": str(self.place.slurm_conf)}

    def run(self, *command: str, check: bool = True) -> str:
        """What a command (`sbatch`, `squeue`, …) prints; DlbhpcError with its error if it fails."""
        result = subprocess.run(
            command,
            env=os.environ | self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
        )
        if check and result.returncode != 0:
            raise DlbhpcError(
                f"{command[0]} on the dev cluster in {self.place.folder} exited with "
                f"{result.returncode}: {result.stderr.strip() or result.stdout.strip()}"
            )
        return result.stdout

    def running(self) -> bool:
        """Whether any of its daemons lives."""
        return any(process.alive() for process in self._processes.values())

    def dead_daemons(self) -> list[str]:
        """Names of the daemons that were started and have ended."""
        return [name for name, process in self._processes.items() if not process.alive()]

    def node_states(self) -> dict[str, str]:
        """Each node's state as `sinfo` writes it: idle, mixed, down, down*, …"""
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return dict(line.split() for line in lines)

    def kill_slurmd(self, node: str) -> None:
        """SIGKILL the node's slurmd alone: its steps live on as ghosts, Slurm sees a lost node."""
        self._kill(self._node(node))

    def start_slurmd(self, node: str) -> None:
        """Start the node's slurmd again and wait until the controller hears from it."""
        self._spawn_slurmd(self._node(node))
        self._await_nodes((node,))

    def kill_controller(self) -> None:
        """SIGKILL slurmctld; jobs run on, commands fail."""
        self._kill("slurmctld")

    def start_controller(self) -> None:
        """Start slurmctld again, with the state that it had saved, and wait until it answers."""
        self._spawn_controller()

    def reset(self) -> None:
        """Cancel all jobs, start what is dead, and wait until all nodes are idle: as if new."""
        name, log = self.place.name, self.place.log
        dead = self.dead_daemons()
        if "slurmctld" in dead:
            self._spawn_controller()
        jobs = self.run("squeue", "--noheader", "--format=%A").split()
        if jobs:
            # Some may have ended meanwhile.
            self.run("scancel", *dict.fromkeys(jobs), check=False)
        daemons.kill_all(lambda: daemons.processes_of_jobs(name, log), "the jobs")
        for node in self.config.node_names:
            if node in dead:
                self._spawn_slurmd(node)
        wait_until(lambda: not self.run("squeue", "--noheader").strip(), "the job queue to empty")
        drained = [node for node, state in self.node_states().items() if state.startswith("drain")]
        if drained:
            self.run("scontrol", "update", f"nodename={','.join(drained)}", "state=resume")
        self._await_nodes(self.config.node_names)

    def stop(self) -> None:
        """End every process of the cluster, its jobs' too, and remove its folder."""
        self._kill_everything()
        shutil.rmtree(self.place.folder)

    def _start_daemons(self) -> None:
        place = self.place
        munge.create_key(place)
        self._spawn("munged", munge.munged_command(place), place.munge_socket.is_socket)
        if self.config.accounting:
            self._spawn(
                "mariadbd", accounting.mariadbd_command(place), place.database_socket.is_socket
            )
            port = place.database_port
            self._spawn("slurmdbd", self._on_controller("slurmdbd"), lambda: listens(port))
        self._spawn_controller()
        for node in self.config.node_names:
            self._spawn_slurmd(node)
        self._await_nodes(self.config.node_names)

    def _spawn_controller(self) -> None:
        # A command that finds nobody there tries again only seconds later: look at the port.
        port = self.place.controller_port
        self._spawn("slurmctld", self._on_controller("slurmctld"), lambda: listens(port))

    def _spawn_slurmd(self, node: str) -> None:
        command = [daemons.program("slurmd"), "-D", "-N", node]
        self._spawn(node, daemons.on_host(node, self.place.hosts, command))

    def _on_controller(self, name: str) -> list[str]:
        return daemons.on_host(CONTROLLER, self.place.hosts, [daemons.program(name), "-D"])

    def _spawn(
        self, name: str, command: list[str], ready: Callable[[], bool] | None = None
    ) -> None:
        """Start a daemon and wait until it is ready; DlbhpcError with its last words if it ends."""
        running = self._processes.get(name)
        if running is not None and running.alive():
            raise DlbhpcError(f"{name} of the dev cluster in {self.place.folder} runs already")
        self._reap(name)
        environment = self.env | accounting.slurmdbd_environment(self.place)
        self._children[name] = daemons.spawn(command, environment, self._output(name))
        process = ProcessId.of(self._children[name].pid)
        if process is None:
            raise DlbhpcError(self._last_words(name))
        self._processes[name] = process
        self._record()
        if ready is not None:
            self._await(ready, f"{name} to answer", (name,))

    def _await(self, ready: Callable[[], bool], what: str, daemons_needed: Iterable[str]) -> None:
        def done() -> bool:
            for name in daemons_needed:
                if not self._processes[name].alive():
                    raise DlbhpcError(self._last_words(name))
            return ready()

        wait_until(done, f"{what} (see {self.place.log})")

    def _await_nodes(self, nodes: Collection[str]) -> None:
        def ready() -> bool:
            states = self.node_states()
            return all(_UP.fullmatch(states[node]) for node in nodes)

        self._await(ready, "the nodes to register", ("slurmctld", *nodes))

    def _last_words(self, name: str) -> str:
        lines = self._output(name).read_text(encoding="utf-8", errors="replace").splitlines()
        return f"{name} of the dev cluster in {self.place.folder} has ended; it said: " + (
            "; ".join(lines[-3:]) or "nothing"
        )

    def _output(self, name: str) -> Path:
        return self.place.log / f"{name}.out"

    def _node(self, name: str) -> str:
        if name not in self.config.node_names:
            raise DlbhpcError(
                f"the dev cluster has no node {name}; it has {', '.join(self.config.node_names)}"
            )
        return name

    def _alive(self) -> set[ProcessId]:
        return {process for process in self._processes.values() if process.alive()}

    def _kill(self, name: str) -> None:
        process = self._processes[name]
        daemons.kill_all(lambda: {process} if process.alive() else set(), name)
        self._reap(name)

    def _kill_everything(self) -> None:
        name, log = self.place.name, self.place.log
        daemons.kill_all(
            lambda: self._alive() | daemons.processes_of_cluster(name, log), "the dev cluster"
        )
        for daemon in list(self._children):
            self._reap(daemon)

    def _reap(self, name: str) -> None:
        child = self._children.pop(name, None)
        if child is not None:
            child.wait()

    def _record(self) -> None:
        path = self.place.folder / _RECORD
        temporary = path.with_suffix(".tmp")
        record = {
            "name": self.place.name,
            "block": self.place.block,
            "config": asdict(self.config),
            "processes": {name: asdict(process) for name, process in self._processes.items()},
        }
        temporary.write_text(json.dumps(record, indent=1), encoding="utf-8")
        temporary.replace(path)


@contextmanager
def _one_start_at_a_time() -> Iterator[None]:
    """Keeps two starting clusters from choosing the same ports, whoever starts them.

    The lock lies on a file that every start needs anyway, so that nothing is left behind.
    """
    descriptor = os.open(daemons.program("slurmctld"), os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
