"""Submit to Slurm: submitit's executor, with our batch script in the place of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import DelayedSubmission

from dlbhpc.layout import OutputLayout
from dlbhpc.run.completion import read_completed
from dlbhpc.scheduler.queue import input_variables


class SlurmExecutor(submitit.SlurmExecutor):
    """Hands a rendered batch script to sbatch and gives back submitit's job handle."""

    def __init__(self, folder: Path, script: str, options: Sequence[str] = ()) -> None:
        """``options`` are sbatch's besides those of the script, which they overrule."""
        super().__init__(folder)
        self._script = script
        self._options = options

    def submit_elements(
        self, batches: Mapping[int, SlurmBatch]
    ) -> dict[int, submitit.SlurmJob[Any]]:
        """Submit a script of an array once; returns one job handle for each of its elements.

        submitit's own way to arrays makes a second executor, which would not know our script, and
        numbers the elements from 0.
        """
        array = self._submit_command(self._submitit_command_str)
        jobs: dict[int, submitit.SlurmJob[Any]] = {}
        for number, batch in batches.items():
            jobs[number] = submitit.SlurmJob(self.folder, f"{array.job_id}_{number}", [0])
            DelayedSubmission(batch).dump(jobs[number].paths.submitted_pickle)
        return jobs

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self._script

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        # The surroundings of a shell inside another allocation must not change the job.
        unset = [word for name in input_variables() for word in ("--unset", name)]
        return ["env", *unset, "sbatch", *self._options, str(submission_file_path)]


@dataclass(frozen=True)
class SlurmBatch:
    """What submitit carries: the run. Its batch script does the work, this tells the result."""

    output: OutputLayout

    def __call__(self) -> dict[str, object] | None:
        return read_completed(self.output)
