"""The command line: `app.py` puts it together, a file a command."""
