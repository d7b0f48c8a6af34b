"""Recipe + geometry + layout -> the upstream's argv and environment."""

from __future__ import annotations

from dlbhpc.command.launch import Launch, Request, dry_run_object
from dlbhpc.command.overrides import attempt_argv, compose_argv, override, override_key
from dlbhpc.command.plan import plan_launch, student_init_snapshot

__all__ = [
    "Launch",
    "Request",
    "attempt_argv",
    "compose_argv",
    "dry_run_object",
    "override",
    "override_key",
    "plan_launch",
    "student_init_snapshot",
]
