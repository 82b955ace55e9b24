"""Started in a fresh process: enables, plans and disables overlay, and prints what Python did meanwhile.

Prints a line of JSON: the error if there was one, and of the interpreter's audit events those that would be a
way out: what was imported, executed or opened, sockets, processes.
"""

from __future__ import annotations

import json
import sys

events: list[tuple[str, str]] = []
#: Beginnings of the events that are looked at. `exec` comes with the code, `open` and `import` with a name.
WATCHED = ("import", "exec", "open", "socket.", "subprocess.", "os.", "urllib.", "ctypes.", "pty.", "http.")
watching = True


def hook(event: str, arguments: tuple[object, ...]) -> None:
    """Remember one event."""
    if watching and event.startswith(WATCHED):
        first = arguments[0] if arguments else ""
        if event == "exec":
            first = getattr(first, "co_filename", first)
        events.append((event, str(first)))


sys.addaudithook(hook)

import overlay  # noqa: E402 -- under the hook

error = ""
try:
    overlay.enable()
    overlay.plan()
    overlay.disable()
except overlay.OverlayError as raised:
    error = f"{type(raised).__name__}: {raised}"
watching = False
sys.stdout.write(json.dumps({"error": error, "events": sorted(set(events))}))
