"""What is sent: tagged workloads that turn a seed into the exact requests of a cell."""
