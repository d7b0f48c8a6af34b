"""slurmdbd's database: a MariaDB of the cluster's own, in its folder."""

from __future__ import annotations

from slurm.devcluster.daemons import program
from slurm.devcluster.place import Place


def mariadbd_command(place: Place) -> list[str]:
    """MariaDB that only root can reach: without a network port, its socket in a closed folder."""
    return [
        program("mariadbd"),
        "--no-defaults",
        "--user=root",
        f"--datadir={place.database}",
        f"--socket={place.database_socket}",
        "--skip-networking",
        # So it needs no tables of users, and making those takes seconds.
        "--skip-grant-tables",
        "--innodb-log-file-size=8M",
        "--innodb-flush-log-at-trx-commit=0",
    ]


def slurmdbd_environment(place: Place) -> dict[str, str]:
    """Tells slurmdbd's database client where the socket is."""
    return {"MYSQL_UNIX_PORT": str(place.database_socket)}
