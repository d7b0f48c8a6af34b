"""The one family of errors that a user can cause."""

from __future__ import annotations


class DlbhpcError(Exception):
    """Something is wrong that the user can mend.

    The message says what is wrong, where, and what to do next. The command line prints it as
    ``ERROR: message`` and exits with :data:`dlbhpc.exit_status.USAGE`; it never shows a traceback.
    """
