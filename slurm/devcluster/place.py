"""Where one dev cluster lives: its folder, its name, and its ports."""

from __future__ import annotations

import errno
import shlex
import socket
from dataclasses import dataclass
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from slurm.devcluster.config import MOST_NODES, PARTITIONS, ClusterConfig

CONTROLLER = "ctl"
"""Host name of the controller, which is no compute node."""

_ADDRESS = "127.0.0.1"
# Below the ports that Linux gives to outgoing connections, above those that Lightning derives
# from job ids. A cluster owns a whole block: the controller's port, slurmdbd's, one for each node.
_FIRST_PORT, _LAST_PORT = 25_600, 32_767
_PORTS_PER_CLUSTER = MOST_NODES + 4
_JOBS_PER_CLUSTER = 1000

_TEMPLATES = Path(__file__).parent
_FOLDERS = ("devices", "log", "munge", "spool", "state")
# A Unix socket's path holds at most 107 bytes; the longest below is spool/nN/nN_JOB.STEP.
_LONGEST_FOLDER = 72


@dataclass(frozen=True)
class Place:
    """Paths and ports of one cluster. Its hosts differ in name and port; all are 127.0.0.1."""

    folder: Path
    name: str
    block: int
    """Its number among the clusters that run on this machine at once, from 0."""

    @property
    def slurm_conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def hosts(self) -> Path:
        return self.folder / "hosts"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def munge(self) -> Path:
        return self.folder / "munge"

    @property
    def munge_key(self) -> Path:
        return self.munge / "key"

    @property
    def munge_socket(self) -> Path:
        return self.munge / "socket"

    @property
    def database(self) -> Path:
        return self.folder / "database"

    @property
    def database_socket(self) -> Path:
        return self.database / "socket"

    @property
    def env_file(self) -> Path:
        return self.folder / "env.sh"

    @property
    def controller_port(self) -> int:
        return _ports(self.block)[0]

    @property
    def database_port(self) -> int:
        return _ports(self.block)[1]

    def node_port(self, number: int) -> int:
        """The port of the node's slurmd; nodes are counted from 1."""
        return _ports(self.block)[1 + number]

    @property
    def first_job_id(self) -> int:
        """Ports are derived from job ids, so clusters that run at once start at different ones."""
        return 1 + self.block * _JOBS_PER_CLUSTER


def check_folder(folder: Path) -> None:
    """Raise DlbhpcError where a cluster cannot live in the folder."""
    if len(str(folder).encode()) > _LONGEST_FOLDER:
        raise DlbhpcError(
            f"{folder} is too long a path for a dev cluster's sockets: "
            f"choose a folder of at most {_LONGEST_FOLDER} bytes"
        )
    # slurm.conf can quote neither blanks nor its own marks in a path.
    if any(not (letter.isalnum() or letter in "/._-+~") for letter in str(folder)):
        raise DlbhpcError(
            f"{folder} cannot stand in a slurm.conf: choose a folder named with letters, digits "
            "and ._-+~ only"
        )
    if folder.exists() and not folder.is_dir():
        raise DlbhpcError(f"{folder} is not a folder: choose another for the dev cluster")


def choose_block() -> int:
    """The first block of ports of which none is taken.

    Holds until somebody else chooses, or until the controller listens: see Cluster.start.
    """
    for block in range((_LAST_PORT + 1 - _FIRST_PORT) // _PORTS_PER_CLUSTER):
        if not any(_is_taken(port) for port in _ports(block)):
            return block
    raise DlbhpcError(
        f"no {_PORTS_PER_CLUSTER} ports in a row are free between {_FIRST_PORT} and {_LAST_PORT}: "
        "see `ss -ltnp` for the programs that listen there, and stop some"
    )


def listens(port: int) -> bool:
    """Whether a daemon accepts connections there."""
    try:
        socket.create_connection((_ADDRESS, port), timeout=1).close()
    except OSError:
        return False
    return True


def _ports(block: int) -> range:
    first = _FIRST_PORT + block * _PORTS_PER_CLUSTER
    return range(first, first + _PORTS_PER_CLUSTER)


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        # As the daemons do, so that connections of an ended cluster do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_ADDRESS, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return True
    return False


def write_files(place: Place, config: ClusterConfig) -> None:
    """Make the folder's content: configuration, host names, and devices that stand for GPUs."""
    for name in _FOLDERS:
        (place.folder / name).mkdir(parents=True)
    for number in range(config.gpus_per_node):
        # Any device will do; nothing opens it.
        (place.folder / "devices" / f"gpu{number}").symlink_to("/dev/null")
    names = ["slurm.conf", "gres.conf", "hosts"]
    if config.accounting:
        place.database.mkdir(mode=0o700)
        names.append("slurmdbd.conf")
    for name in names:
        path = place.folder / name
        path.write_text(_render(name, place, config), encoding="utf-8")
        path.chmod(0o600 if name == "slurmdbd.conf" else 0o644)
    place.env_file.write_text(
        f"export SLURM_CONF={shlex.quote(str(place.slurm_conf))}\n", encoding="utf-8"
    )


def _render(name: str, place: Place, config: ClusterConfig) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(f"{name}.j2").render(
        place=place,
        config=config,
        partitions=PARTITIONS,
        machine_hosts=Path("/etc/hosts").read_text(encoding="utf-8"),
        controller=CONTROLLER,
        address=_ADDRESS,
    )
