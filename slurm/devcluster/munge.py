"""Slurm's authentication: a munged of the cluster's own, in its folder."""

from __future__ import annotations

import secrets

from slurm.devcluster.daemons import program
from slurm.devcluster.place import Place

_KEY_BYTES = 1024


def create_key(place: Place) -> None:
    """Make the secret that the cluster's daemons and commands share."""
    key = place.munge_key
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(_KEY_BYTES))


def munged_command(place: Place) -> list[str]:
    """munged, keeping everything in the cluster's folder."""
    # It would refuse a folder that others cannot enter, as a temporary folder is.
    command = [program("munged"), "--foreground", "--force", f"--key-file={place.munge_key}"]
    return command + [
        f"--{option}={place.munge / option}"
        for option in ("socket", "pid-file", "log-file", "seed-file")
    ]
