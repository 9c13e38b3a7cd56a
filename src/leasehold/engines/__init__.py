"""One file an engine: its operations, its capabilities and its guarantee."""
