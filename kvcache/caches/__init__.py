"""One file per cache: its layer, its class and its catalog entry."""
