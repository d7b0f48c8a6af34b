"""How quickly the command line starts, against `import submitit`, in one run.

Promise: `python -m dlbhpc --help` and `recipes` start within 2.5 x `python -c "import submitit"`.
The commands run in turn, so that a slow moment of the machine meets all of them; ratios are taken
round by round, and their median is printed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 15
CHECKOUT = Path(__file__).resolve().parents[1]
BASELINE = ("-c", "import submitit")
COMMANDS = {
    "--help": ("-m", "dlbhpc", "--help"),
    "recipes": ("-m", "dlbhpc", "recipes"),
    "recipes show duo": ("-m", "dlbhpc", "recipes", "show", "duo"),
}


def seconds(arguments: tuple[str, ...]) -> float:
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=CHECKOUT
    )
    return time.perf_counter() - begun


def main() -> None:
    for arguments in (BASELINE, *COMMANDS.values()):
        seconds(arguments)
    ratios: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        baseline = seconds(BASELINE)
        for name, arguments in COMMANDS.items():
            ratios[name].append(seconds(arguments) / baseline)
    for name, values in ratios.items():
        print(f"{name:<18} {statistics.median(values):.2f} x `import submitit` (promised: 2.5)")


if __name__ == "__main__":
    main()
