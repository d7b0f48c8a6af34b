"""What submitit's job handle reads: the outcome of a job, in the file where it looks for it."""

from __future__ import annotations

import pickle

from dlbhpc.files import write_bytes
from dlbhpc.layout import OutputLayout
from dlbhpc.run.completion import read_completed
from dlbhpc.scheduler.submission import log_path


def tell_handle(output: OutputLayout, job_id: str, sentence: str) -> None:
    """Let the handle know that the job is over: with the completion record, or with the sentence.

    A job that runs again is not over. Without this a handle would wait for accounting, which not
    every cluster has.
    """
    completed = read_completed(output)
    outcome = ("error", sentence) if completed is None else ("success", completed)
    path = log_path(output, job_id).with_name(f"{job_id}_0_result.pkl")
    write_bytes(path, pickle.dumps(outcome))
