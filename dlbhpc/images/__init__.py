"""Frozen images: what they hold, how they are built and proven, and how a task runs in one."""
