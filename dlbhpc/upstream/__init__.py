"""The configuration of the upstreams: what it has, and whether what we render fits it."""
