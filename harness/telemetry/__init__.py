"""Time series beside the load: what the host and the server say while requests are under way."""
