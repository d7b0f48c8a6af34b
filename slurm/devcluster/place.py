"""Where one dev cluster lives: its folder, its name, and its own part of the loopback network."""

from __future__ import annotations

import errno
import random
import shlex
import socket
from dataclasses import dataclass
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from slurm.devcluster.config import PARTITIONS, ClusterConfig

CONTROLLER = "ctl"
"""Host name of the controller, which is no compute node."""

CONTROLLER_PORT, NODE_PORT, DATABASE_PORT = 16817, 16818, 16819
_CONTROLLER_NUMBER = 254

_TEMPLATES = Path(__file__).parent
_FOLDERS = ("devices", "log", "munge", "spool", "state")
# A Unix socket's path holds at most 107 bytes; the longest below is spool/nN/nN_JOB.STEP.
_LONGEST_FOLDER = 64


@dataclass(frozen=True)
class Place:
    """Paths and addresses of one cluster.

    All of 127.0.0.0/8 is loopback. A cluster takes one /24 of it, in which every host has an
    address of its own: so clusters cannot clash over ports, and nothing listens elsewhere.
    """

    folder: Path
    name: str
    network: str  # the first three numbers of its addresses

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
    def controller_address(self) -> str:
        return f"{self.network}.{_CONTROLLER_NUMBER}"

    def node_address(self, node: str) -> str:
        return f"{self.network}.{node.removeprefix('n')}"


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


def choose_network() -> str:
    """A /24 of the loopback network on which nobody listens.

    Holds as long as nobody else chooses before the controller listens: see Cluster.start.
    """
    for _ in range(100):
        network = f"127.{random.randint(1, 254)}.{random.randint(1, 254)}"
        with socket.socket() as probe:
            try:
                probe.bind((f"{network}.{_CONTROLLER_NUMBER}", CONTROLLER_PORT))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
        return network
    raise DlbhpcError(
        f"port {CONTROLLER_PORT} is taken on every loopback address: see `ss -ltnp` for the "
        "program that listens on it, and stop that"
    )


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
        controller_port=CONTROLLER_PORT,
        node_port=NODE_PORT,
        database_port=DATABASE_PORT,
    )
