"""A port for ranks to meet at."""

from __future__ import annotations

import secrets
import socket

#: Below those that the system hands out to whoever connects, above those of the servers of Ray's client. Who
#: takes one of these asks for it by number.
_PORTS = range(24_001, 32_000)


def free_port() -> int:
    """Return a port of this machine on which nobody listens, and which nobody is given by chance.

    Raises:
        OSError: None was free.

    """
    for _ in range(100):
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError(f"no port from {_PORTS.start} to {_PORTS.stop - 1} is free")
