"""Runs the pinned duo's main.py with the losses repaired: it cannot train ``algo=duo`` alone."""

from __future__ import annotations

from dlbhpc.inside.adapters.duo_losses import repair_losses
from dlbhpc.inside.adapters.main_program import checkout_file, lead_search, run_main

if __name__ == "__main__":
    program = checkout_file("main.py")
    lead_search(program.parent)

    import algo

    repair_losses(algo)
    run_main(program)
