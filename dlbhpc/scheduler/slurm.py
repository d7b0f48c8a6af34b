"""Submit to Slurm: submitit's executor, with our batch script in the place of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import submitit

from dlbhpc.layout import OutputLayout
from dlbhpc.run.completion import read_completed
from dlbhpc.scheduler.queue import input_variables


class SlurmExecutor(submitit.SlurmExecutor):
    """Hands a rendered batch script to sbatch and gives back submitit's job handle."""

    def __init__(self, folder: Path, script: str) -> None:
        super().__init__(folder)
        self._script = script

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self._script

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        # The surroundings of a shell inside another allocation must not change the job.
        unset = [word for name in input_variables() for word in ("--unset", name)]
        return ["env", *unset, "sbatch", str(submission_file_path)]


@dataclass(frozen=True)
class SlurmBatch:
    """What submitit carries: the run. Its batch script does the work, this tells the result."""

    output: OutputLayout

    def __call__(self) -> dict[str, object] | None:
        return read_completed(self.output)
