"""A tag's digest is asked of its registry: here one of our own, on this machine."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.images.registry import resolve_digest, split_reference

DIGEST = "sha256:" + "e" * 64


class Registry(BaseHTTPRequestHandler):
    """Answers to readers that hold a token, which it gives to everybody."""

    def do_HEAD(self) -> None:
        if self.headers.get("Authorization") != "Bearer good":
            self.send_response(401)
            port = self.server.server_address[1]
            realm = f'realm="http://127.0.0.1:{port}/token",service="r",scope="repository:a/b:pull"'
            self.send_header("WWW-Authenticate", f"Bearer {realm}")
        elif self.path == "/v2/a/b/manifests/1":
            assert "image.index" in self.headers["Accept"]
            self.send_response(200)
            self.send_header("Docker-Content-Digest", DIGEST)
        elif self.path == "/v2/a/b/manifests/odd":
            self.send_response(200)
        else:
            self.send_response(404)
        self.end_headers()

    def do_GET(self) -> None:
        assert self.path.startswith("/token?service=r&scope=repository")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"token": "good"}).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_tag_is_resolved(registry: str) -> None:
    assert resolve_digest(f"{registry}/a/b:1") == DIGEST


def test_a_digest_needs_no_registry() -> None:
    assert resolve_digest(f"nowhere.invalid/a@{DIGEST}") == DIGEST


def test_an_unknown_tag_says_what_to_do(registry: str) -> None:
    with pytest.raises(DlbhpcError, match=r"404.*put the line .*/a/b:2@sha256:DIGEST into base"):
        resolve_digest(f"{registry}/a/b:2")


def test_an_answer_without_a_digest_is_refused(registry: str) -> None:
    with pytest.raises(DlbhpcError, match="answers without a digest"):
        resolve_digest(f"{registry}/a/b:odd")


def test_what_answers_but_is_no_registry_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(DlbhpcError, match="cannot be asked for its digest"):
            resolve_digest(f"127.0.0.1:{port}/a/b:1")
        thread.join()


def test_a_registry_that_is_not_there_is_named() -> None:
    with pytest.raises(DlbhpcError, match=r"the registry of 127.0.0.1:1/a/b:1 cannot be asked"):
        resolve_digest("127.0.0.1:1/a/b:1")


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("python", ("docker.io", "library/python", "latest")),
        ("python:3.9-bookworm", ("docker.io", "library/python", "3.9-bookworm")),
        ("docker.io/library/python:3", ("docker.io", "library/python", "3")),
        ("docker.io/nvidia/cuda:12", ("docker.io", "nvidia/cuda", "12")),
        ("nvidia/cuda:12", ("docker.io", "nvidia/cuda", "12")),
        ("localhost:5000/a", ("localhost:5000", "a", "latest")),
        ("ghcr.io/a/b:1", ("ghcr.io", "a/b", "1")),
    ],
)
def test_a_reference_is_split_with_dockers_defaults(
    reference: str, parts: tuple[str, str, str]
) -> None:
    assert split_reference(reference) == parts
