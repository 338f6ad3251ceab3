"""Engines as adapters: one neutral contract, the supervision of their servers, and the in-repo reference engine."""
