"""Scripts that stand in for an upstream's main program and run it, with what it lacks put right.

Each is started in the upstream's checkout, with the words that the main program takes, and edits no
file of it.
"""
