"""What the start-up file in site-packages calls in every Python process of a job.

It runs before user code and before the path is complete: the folder of the script is not on it yet, nor what
start-up files with later names add. So nothing of an upstream is looked for here; that waits for its import.

`site` swallows what a start-up file raises. A process that must not go on is therefore ended here.
"""

from __future__ import annotations

import os
import sys

#: The exit status of a process that is stopped at its start.
STOPPED = 1

#: Whether it has run: in a venv, Python reads start-up files twice.
started = False

#: What says no in a variable that is yes or no. It is asked here too where what else asks is broken.
_NO = ("", "0", "false", "no", "off")


def start() -> None:
    """Enable overlay if the environment asks for it.

    An error is one line on standard error, and the end of the process if it is pinned or strict. That holds
    for an overlay of which parts are missing as well.
    """
    global started  # noqa: PLW0603 -- once per interpreter is what it is about
    if started or _says_no("OVERLAY"):
        return
    started = True
    known: tuple[type[Exception], ...] = ()
    try:
        from overlay.arming import ray_jobs
        from overlay.base import settings
        from overlay.enabling.process import here
        from overlay.errors import OverlayError

        known = (OverlayError,)
        if settings.armed():
            here().enable()
            ray_jobs.watch()
    except Exception as error:  # noqa: BLE001 -- an interpreter must start, whatever is wrong with overlay
        text = str(error) if isinstance(error, known) else f"{type(error).__name__}: {error}"
        # Somebody who says something else than yes or no to strict mode meant to say something about it.
        stop = bool(os.environ.get("OVERLAY_PIN", "").strip()) or not _says_no("OVERLAY_STRICT")
        _say(f"overlay: {'this process is stopped' if stop else 'NOT enabled'}: {text}\n")
        if stop:
            os._exit(STOPPED)


def _says_no(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in _NO


def _say(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except Exception:  # noqa: BLE001, S110 -- closed, or full: what stops a process must not depend on it
        pass
