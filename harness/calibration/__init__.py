"""What this machine's client can measure: runs against a server of known schedule, and how wrong they were."""
