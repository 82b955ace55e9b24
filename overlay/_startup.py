"""What the start-up file in site-packages calls in every Python process of a job.

It runs before user code and before the path is complete: the folder of the script is not on it yet, nor what
start-up files with later names add. So nothing of an upstream is looked for here; that waits for its import.

`site` swallows what a start-up file raises. A process that must not go on is therefore ended here.
"""

from __future__ import annotations

import os
import sys

#: What the start-up files are called, beside their endings.
NAME = "overlay-startup"
#: The exit status of a process that is stopped at its start.
STOPPED = 1

#: Whether it has run: in a venv, Python reads start-up files twice.
_started = False


def start() -> None:
    """Enable overlay if the environment asks for it.

    An error is one line on standard error, and the end of the process if it is pinned or strict.
    """
    global _started  # noqa: PLW0603 -- once per interpreter is what it is about
    if _started or os.environ.get("OVERLAY", "") in ("", "0"):
        return
    _started = True
    import overlay
    from overlay import _settings

    try:
        if _settings.armed():
            overlay.enable()
    except Exception as error:  # noqa: BLE001 -- an interpreter must start, whatever is wrong with overlay
        text = str(error) if isinstance(error, overlay.OverlayError) else f"{type(error).__name__}: {error}"
        stop = _is_binding()
        sys.stderr.write(f"overlay: {'this process is stopped' if stop else 'NOT enabled'}: {text}\n")
        sys.stderr.flush()
        if stop:
            os._exit(STOPPED)


def _is_binding() -> bool:
    """Return whether the environment asks that a process which cannot be patched does not run."""
    from overlay import _settings
    from overlay.errors import SelectionError

    try:
        return bool(os.environ.get("OVERLAY_PIN")) or _settings.strict()
    except SelectionError:
        return True  # somebody meant to say something about it
