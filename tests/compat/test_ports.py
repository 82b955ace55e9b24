"""A port to meet at is free, and none that the system may give to somebody else meanwhile."""

from __future__ import annotations

import socket
from pathlib import Path

import ports
import pytest


def test_it_is_free_and_none_that_the_system_hands_out() -> None:
    least = Path("/proc/sys/net/ipv4/ip_local_port_range")
    found = ports.free_port()
    with socket.socket() as one:
        one.bind(("127.0.0.1", found))
    if least.exists():
        assert found < int(least.read_text().split()[0])


def test_one_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = ports.free_port()
    monkeypatch.setattr(ports, "_PORTS", range(taken, taken + 1))
    with socket.socket() as one:
        one.bind(("127.0.0.1", taken))
        with pytest.raises(OSError, match=f"no port from {taken} to {taken} is free"):
            ports.free_port()
