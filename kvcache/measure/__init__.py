"""How far caches drift, how fast they decode, and the tables of it in README.md and docs/: `python -m kvcache.measure --help`."""
