"""A server of known schedule: what a load client ought to have measured, by the send stamps of the server itself."""
