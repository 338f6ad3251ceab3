"""TLS that leaves the socket to the caller, so that every byte still comes through recvmsg with its arrival stamp."""

from __future__ import annotations

import ssl

_RECORD = 64 * 1024


class Tls:
    """One side of a TLS connection over memory buffers; what is to be sent gathers in `pending`."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self.incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self.incoming, self._outgoing, server_hostname=host)
        self.pending = b""

    def handshake(self) -> bool:
        """One step; True when it is done. Bytes to be sent are in `pending`, also after a failure (the alert)."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self.pending += self._outgoing.read()
        return True

    def write(self, data: memoryview) -> None:
        while data:
            data = data[self._object.write(data) :]
        self.pending += self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """What can be read after these bytes; empty when a record is not complete (or held no data)."""
        self.incoming.write(data)
        pieces: list[bytes] = []
        try:
            while piece := self._object.read(_RECORD):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            pass  # closed by the peer: the end of the TCP stream follows
        self.pending += self._outgoing.read()
        return b"".join(pieces)
