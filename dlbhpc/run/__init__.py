"""One run's life: launch record, identity, lease, attempts, completion."""
