"""What runs inside the images is valid on their oldest Python, 3.9."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "dlbhpc"
ROOMS = [
    "__init__.py",
    "errors.py",
    "exit_status.py",
    "steps/**/*.py",
    "inside/**/*.py",
    "inputs/teacher/*.py",
]
FILES = sorted(path for room in ROOMS for path in PACKAGE.glob(room))

# Names of the standard library that came after 3.9, for those that are easily reached for.
NEWER = {
    "contextlib": {"aclosing", "chdir"},
    "dataclasses": {"KW_ONLY"},
    "datetime": {"UTC"},
    "enum": {"StrEnum", "verify"},
    "hashlib": {"file_digest"},
    "inspect": {"get_annotations"},
    "itertools": {"batched", "pairwise"},
    "types": {"EllipsisType", "NoneType", "UnionType"},
    "typing": {
        "Concatenate",
        "LiteralString",
        "NotRequired",
        "ParamSpec",
        "Required",
        "Self",
        "TypeAlias",
        "TypeGuard",
        "Unpack",
        "assert_never",
        "override",
    },
    "tomllib": set(),
}
NEWER_KEYWORDS = {"dataclass": {"slots", "kw_only", "weakref_slot"}, "zip": {"strict"}}
BUILTIN_TYPES = {
    "bool",
    "bytes",
    "dict",
    "float",
    "frozenset",
    "int",
    "list",
    "set",
    "str",
    "tuple",
}


def evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run: all but annotations, which a future import keeps as text."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from evaluated(child)


def is_type(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return is_type(node.value)
    if isinstance(node, ast.Constant):
        return node.value is None
    return isinstance(node, ast.Name) and (node.id in BUILTIN_TYPES or node.id[0].isupper())


def too_new(source: str) -> list[str]:
    """What in ``source`` needs a Python newer than 3.9, by line."""
    try:
        tree = ast.parse(source, feature_version=(3, 9))
    except SyntaxError as error:
        return [f"{error.lineno}: {error.msg}"]
    found = []
    for node in evaluated(tree):
        name = None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            if is_type(node.left) and is_type(node.right):
                name = "a union of types made at run time"
        elif isinstance(node, ast.Match):
            name = "match"
        elif isinstance(node, ast.ImportFrom) and node.module in NEWER:
            name = ", ".join(sorted({alias.name for alias in node.names} & NEWER[node.module]))
        elif isinstance(node, ast.Import):
            name = ", ".join(alias.name for alias in node.names if NEWER.get(alias.name) == set())
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = node.attr if node.attr in NEWER.get(node.value.id, ()) else None
        elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            given = {keyword.arg or "" for keyword in node.keywords}
            name = ", ".join(sorted(given & NEWER_KEYWORDS.get(called, set())))
        if name:
            found.append(f"{getattr(node, 'lineno', 0)}: {name}")
    annotated = any(isinstance(node, (ast.AnnAssign, ast.FunctionDef)) for node in ast.walk(tree))
    if annotated and "from __future__ import annotations" not in source:
        found.append("1: annotations that are evaluated")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_rooms_of_the_images_need_no_newer_python(path: Path) -> None:
    assert too_new(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "match x:\n    case 1: pass",
        "Pair = int | None",
        "isinstance(x, list[int] | Path)",
        "@dataclass(slots=True)\nclass A: pass",
        "zip(a, b, strict=True)",
        "from typing import Self",
        "import tomllib",
        "datetime.UTC",
        "def f(x: int | None) -> None: ...",
        "try: pass\nexcept* OSError: pass",
    ],
)
def test_newer_python_is_noticed(source: str) -> None:
    assert too_new(source)


def test_flags_and_annotations_are_not_mistaken_for_it() -> None:
    source = "from __future__ import annotations\nx: int | None = a.O_X | O.Y\ny = {1} | z"
    assert too_new(source) == []


def test_step_directories_import_on_python_39() -> None:
    python = shutil.which("python3.9")
    # A version manager's stand-in has the name, and fails, where no 3.9 is chosen.
    if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip("no python3.9 on PATH")
    command = [python, "-B", "-c", "import dlbhpc.steps, dlbhpc.exit_status"]
    subprocess.run(command, cwd=PACKAGE.parent, check=True)
