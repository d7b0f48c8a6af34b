"""Find the command, run it, and turn a user's error into a sentence and exit status 2."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from dlbhpc import __version__
from dlbhpc.errors import DlbhpcError
from dlbhpc.exit_status import USAGE
from dlbhpc.layout import CHECKOUT

_COMMANDS = {
    "submit": "train a recipe: submit its job, or print it with --dry-run",
    "plan": "list every exact geometry of a recipe",
    "recipes": "list the recipes, or show one with its evidence",
    "profiles": "list the cluster profiles, or show one with the file of each value",
    "data": "prepare datasets, verify them, hand them to the upstreams",
    "teacher": "look into a teacher's checkpoint, adapt it for a student",
    "upstream": "record what an upstream's configuration has",
    "image": "build, verify, list or enter the frozen images, or fetch their wheels",
    "status": "one table over all runs",
    "logs": "print the log of a run",
    "preempt": "preempt a run, as a scheduler would: it requeues",
    "requeue": "let a run go on that has stopped, or whose job is held",
    "cancel": "end a run; it is not requeued",
    "doctor": "what this machine and its cluster mean for a run",
    "report": "summarise a run: attempts, steps repeated, evaluation",
    "demo": "train, preempt, resume and finish the bundled recipe",
    "attempt": "used by the batch script: begin, task, spawn, end",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        # Only the command that is named is imported, so that each starts quickly.
        return _run(arguments)
    except DlbhpcError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return USAGE
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dlbhpc"):
            raise
        ready = (CHECKOUT / ".venv/.installed").exists()
        set_up = "" if ready else f"run `make setup` in {CHECKOUT}, then "
        print(
            f"ERROR: the Python package {error.name} is not installed for {sys.executable}: "
            f"{set_up}use {CHECKOUT / '.venv/bin/python'}",
            file=sys.stderr,
        )
        return USAGE
    except (UnicodeError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            return _reader_left()
        # A full disk, a missing permission, a name that no file can have: the words are enough.
        print(f"ERROR: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return 130


def _reader_left() -> int:
    # head or less has left; silence the interpreter's own flush at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="dlbhpc",
        description="Train diffusion language models on SLURM clusters with paper-locked recipes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands:\n"
        + "\n".join(f"  {name:<10}{text}" for name, text in _COMMANDS.items())
        + "\n\nEach has its own --help.",
    )
    parser.add_argument("--version", action="version", version=f"dlbhpc {__version__}")
    parser.add_argument("command", choices=_COMMANDS, metavar="COMMAND")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    module = importlib.import_module(f"dlbhpc.cli.{chosen.command}")
    command = argparse.ArgumentParser(
        prog=f"dlbhpc {chosen.command}", description=_COMMANDS[chosen.command]
    )
    module.add_arguments(command)
    status: int = module.run(command.parse_args(chosen.arguments))
    return status
