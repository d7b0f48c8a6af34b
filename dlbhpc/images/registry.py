"""What a Docker tag stands for right now: one question to its registry."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping

from dlbhpc.errors import DlbhpcError

_MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_HUB = "docker.io"
_HUB_API = "registry-1.docker.io"
_TIMEOUT_SECONDS = 30
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def resolve_digest(reference: str) -> str:
    """``sha256:…`` of the manifest (for all platforms, if it is a list) that a tag stands for.

    A reference with a digest is answered from itself. Raises DlbhpcError when the registry cannot
    be asked, or answers without a digest.
    """
    if "@" in reference:
        return reference.partition("@")[2]
    host, repository, tag = split_reference(reference)
    # Docker's own rule: a registry on this machine is spoken to without encryption.
    plain = host.partition(":")[0] in ("localhost", "127.0.0.1")
    server = f"{'http' if plain else 'https'}://{_HUB_API if host == _HUB else host}"
    url = f"{server}/v2/{repository}/manifests/{tag}"
    try:
        try:
            answer = _head(url, {})
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
            token = _token(error.headers.get("WWW-Authenticate", ""))
            answer = _head(url, {"Authorization": f"Bearer {token}"})
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DlbhpcError(
            f"the registry of {reference} cannot be asked for its digest ({error}): put the line "
            f"{reference}@sha256:DIGEST into base.lock, or see what docs/images.md says of a site "
            "without a network"
        ) from error
    digest = answer.get("docker-content-digest", "")
    if not _DIGEST.fullmatch(digest):
        raise DlbhpcError(f"the registry of {reference} answers without a digest: {digest!r}")
    return digest


def split_reference(reference: str) -> tuple[str, str, str]:
    """Registry, repository and tag of a Docker reference, with Docker's defaults."""
    name, _, tag = reference.rpartition(":")
    if not name or "/" in tag:
        name, tag = reference, "latest"
    first, _, rest = name.partition("/")
    if not rest or not ("." in first or ":" in first or first == "localhost"):
        first, rest = _HUB, name
    if first == _HUB and "/" not in rest:
        rest = f"library/{rest}"
    return first, rest, tag


def _head(url: str, headers: Mapping[str, str]) -> dict[str, str]:
    request = urllib.request.Request(url, method="HEAD", headers={"Accept": _MANIFESTS, **headers})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
        return {key.lower(): value for key, value in answer.headers.items()}


def _token(challenge: str) -> str:
    """A token for an anonymous reader, from where the registry's challenge says."""
    parameters = dict(_PARAMETER.findall(challenge))
    realm = parameters.pop("realm", "")
    if not challenge.lower().startswith("bearer ") or not realm.startswith(("https://", "http://")):
        raise ValueError(f"it asks for a login: {challenge!r}")
    url = f"{realm}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
        values = json.loads(answer.read())
    token = values.get("token") or values.get("access_token") if isinstance(values, dict) else None
    if not isinstance(token, str):
        raise ValueError("it gives no token to a reader without a login")
    return token
