"""How wrong is another load tool? It is run against a server of known schedule, and its result file is read."""
