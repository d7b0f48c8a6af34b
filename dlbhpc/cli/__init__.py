"""The command line: each command parses, calls one room, and prints."""
