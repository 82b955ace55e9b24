"""What a process tells the `overlay run` that watches its job. See `overlay.desk.watch`."""

from __future__ import annotations

import os

from overlay.model.settings import WATCH

#: What is told: overlay is enabled in this process; it has imported a module that a patch is for.
ENABLED, BEGUN = "enabled", "begun"
#: Seconds that a process waits until it is heard, at most.
_PATIENCE = 1.0
#: Where `stat_of` has the start of the stack.
_STACK = 25


def announce(word: str) -> list[str]:
    """Tell it to each that watches, and return the addresses of those. Raises nothing."""
    return [one for one in os.environ.get(WATCH, "").split() if _send(word, one)]


def _send(word: str, address: str) -> bool:
    try:
        from _socket import AF_UNIX, SOCK_DGRAM, socket  # `socket` itself loads more files

        sender = socket(AF_UNIX, SOCK_DGRAM)
        try:
            sender.settimeout(_PATIENCE)
            sender.sendto(f"{word} {program_of('self')}".encode(), f"\0{address}".encode())
        finally:
            sender.close()
    except Exception:  # noqa: BLE001 -- it watches no more, or not from here
        return False
    return True


def program_of(process: int | str) -> str:
    """Return what a process has in common with its forks, and with nothing that it executes: its stack.

    Raises `OSError` if it has ended.
    """
    return stat_of(process)[_STACK]


def stat_of(process: int | str) -> list[str]:
    """Return what `/proc` says of a process, from its state on. Raises `OSError` if it has ended."""
    with open(f"/proc/{process}/stat", "rb") as file:
        # Before that is the name of the program, in parentheses, which may have any character.
        return file.read().rpartition(b")")[2].decode().split()
