"""slurmdbd's database: a private MariaDB that only a socket in the cluster's folder reaches."""

from __future__ import annotations

import subprocess

from dlbhpc.errors import DlbhpcError
from slurm.devcluster.daemons import program
from slurm.devcluster.place import Place


def environment(place: Place) -> dict[str, str]:
    """What tells slurmdbd's database client where the socket is."""
    return {"MYSQL_UNIX_PORT": str(place.database_socket)}


def create_database(place: Place) -> None:
    """Make MariaDB's own tables."""
    result = subprocess.run(
        [
            program("mariadb-install-db"),
            "--no-defaults",
            "--user=root",
            f"--datadir={place.database}",
            "--auth-root-authentication-method=normal",
            "--skip-name-resolve",
            "--skip-test-db",
        ],
        capture_output=True,
        text=True,
    )
    if result.returncode != 0:
        raise DlbhpcError(
            f"mariadb-install-db could not make {place.database}: "
            f"{result.stderr.strip() or result.stdout.strip()}"
        )


def mariadbd_command(place: Place) -> list[str]:
    """MariaDB without a network port, and small."""
    return [
        program("mariadbd"),
        "--no-defaults",
        "--user=root",
        f"--datadir={place.database}",
        f"--socket={place.database_socket}",
        "--skip-networking",
        "--innodb-log-file-size=8M",
        "--innodb-flush-log-at-trx-commit=0",
    ]
