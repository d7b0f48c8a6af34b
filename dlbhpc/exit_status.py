"""Exit statuses that the processes of one run tell each other.

74 to 77 are taken from sysexits.h: no signal (128 + N) and no interpreter (1, 2) uses them.
"""

from __future__ import annotations

USAGE = 2
"""Bad input: a sentence was printed, nothing was changed."""

STORAGE = 74
"""Checkpoints could not be written (EX_IOERR): running again at once would fail again."""

REQUEUE = 75
"""Stopped on request with nothing lost (EX_TEMPFAIL): run again to continue."""

FENCED = 76
"""A newer attempt owns the run (EX_PROTOCOL): this process must not write any more."""

REQUEUE_WANTED = 77
"""As REQUEUE, but the job could not be put into the queue again (EX_NOPERM): submit it by hand."""
