"""The harness: experiment, planner, sessions, load, samplers and the command line. The top floor."""
