"""The command line: `app.py` starts it, `commands.py` puts it together, a file a command."""
