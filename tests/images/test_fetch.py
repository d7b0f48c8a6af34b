"""A wheelhouse is filled with the locked files, by their hashes, and nothing of them is run."""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from dlbhpc.cli.main import main
from dlbhpc.errors import DlbhpcError
from dlbhpc.images.fetch import INDEX, fill_wheelhouse
from dlbhpc.images.lock import Locked
from dlbhpc.images.spec import ImageSpec, load_image
from dlbhpc.images.wheelhouse import check_wheelhouse

ONE, TWO = "one-1.0-py3-none-any.whl", "two-1.0.tar.gz"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Index:
    """A package index on this machine."""

    address: str = ""
    pages: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def offer(self, name: str, files: dict[str, bytes]) -> None:
        listed = [
            {"filename": file, "url": f"../../files/{file}", "hashes": {"sha256": sha256(content)}}
            for file, content in files.items()
        ]
        self.pages[f"/simple/{name}/"] = json.dumps({"files": listed}).encode()
        self.pages.update({f"/files/{file}": content for file, content in files.items()})


@pytest.fixture
def index() -> Iterator[Index]:
    index = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.asked.append(self.path)
            self.send_response(200 if self.path in index.pages else 404)
            self.end_headers()
            self.wfile.write(index.pages.get(self.path, b""))

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    index.address = f"http://127.0.0.1:{server.server_address[1]}/simple"
    index.offer("one", {"one-1.0-cp311-cp311-win_amd64.whl": b"other", ONE: b"wheel"})
    index.offer("two", {TWO: b"source", "two-1.1.tar.gz": b"newer"})
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield index
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def spec(reference: ImageSpec) -> ImageSpec:
    packages = (Locked("one", "1.0", sha256(b"wheel")), Locked("two", "1.0", sha256(b"source")))
    return replace(reference, packages=packages)


def test_the_locked_files_come_and_a_second_time_only_what_is_missing(
    spec: ImageSpec, index: Index, tmp_path: Path
) -> None:
    folder, said = tmp_path / "wheels", list[str]()
    fill_wheelhouse(folder, spec, said.append, index.address)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        ONE: b"wheel",
        TWO: b"source",
    }
    assert said == [f"1/2 {ONE}", f"2/2 {TWO}"]
    check_wheelhouse(folder, spec)
    (folder / TWO).write_bytes(b"torn")
    index.asked.clear()
    fill_wheelhouse(folder, spec, print, f"{index.address}/")
    assert index.asked == ["/simple/two/", f"/files/{TWO}"]
    check_wheelhouse(folder, spec)


def test_a_file_of_another_hash_is_refused_and_not_left(
    spec: ImageSpec, index: Index, tmp_path: Path
) -> None:
    index.pages[f"/files/{TWO}"] = b"evil"
    with pytest.raises(DlbhpcError, match=rf"{TWO} has the sha256 {sha256(b'evil')}, the lock"):
        fill_wheelhouse(tmp_path, spec, print, index.address)
    assert [path.name for path in tmp_path.iterdir()] == [ONE]


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (b'{"files": []}', r"has no file of two==1.0 with the sha256 .*name another --index"),
        (b"<html>", r"two==1.0 cannot be fetched from .*run the same again"),
        (b"[]", r"two==1.0 cannot be fetched from .*JSON \(PEP 691\)"),
        (b'{"files": ["two-1.0.tar.gz"]}', r"two==1.0 cannot be fetched from "),
        (None, r"two==1.0 cannot be fetched from .*404"),
    ],
)
def test_an_index_that_has_it_not_or_says_something_else_is_told(
    spec: ImageSpec, index: Index, tmp_path: Path, page: bytes | None, words: str
) -> None:
    del index.pages["/simple/two/"]
    if page is not None:
        index.pages["/simple/two/"] = page
    with pytest.raises(DlbhpcError, match=words):
        fill_wheelhouse(tmp_path, spec, print, index.address)


@pytest.mark.parametrize(
    ("name", "url"),
    [("../two-1.0.tar.gz", "../../files/x"), (".bashrc", "../../files/x"), (TWO, "file:///x")],
)
def test_an_index_neither_chooses_a_place_nor_names_a_file_of_this_machine(
    spec: ImageSpec, index: Index, tmp_path: Path, name: str, url: str
) -> None:
    index.pages["/files/x"] = b"source"
    file = {"filename": name, "url": url, "hashes": {"sha256": sha256(b"source")}}
    index.pages["/simple/two/"] = json.dumps({"files": [file]}).encode()
    with pytest.raises(DlbhpcError, match=r"which is no package|is no http address"):
        fill_wheelhouse(tmp_path / "wheels", spec, print, index.address)
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == [ONE]
    assert [path.name for path in tmp_path.iterdir()] == ["wheels"]


def test_the_command_says_what_it_brings(
    spec: ImageSpec,
    index: Index,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("dlbhpc.images.spec.load_image", lambda name: spec)
    folder = tmp_path / "wheels"
    assert main(["image", "wheels", "reference", str(folder), "--index", index.address]) == 0
    assert capsys.readouterr().out.endswith(f"{folder} holds the 2 files of {spec.lock}\n")


@pytest.mark.index
def test_what_pip_would_have_to_build_comes_from_the_real_index(tmp_path: Path) -> None:
    """Its setup.py is not run: pip download of this file fails without torch."""
    try:
        urllib.request.urlopen(f"{INDEX}/pip/", timeout=30).close()
    except OSError as error:
        pytest.skip(f"the package index does not answer: {error}")
    spec = load_image("duo")
    packages = tuple(package for package in spec.packages if package.name == "flash-attn")
    fill_wheelhouse(tmp_path, replace(spec, packages=packages), print)
    (path,) = tmp_path.iterdir()
    assert path.name == f"flash_attn-{packages[0].version}.tar.gz"
