"""The twin: what settings nobody has measured would do, by running the engine's scheduler on a clock of fitted step times."""
