"""The environment variables that enable another process as this one is."""

from __future__ import annotations

import os

from overlay.model import settings
from overlay.runtime.process import here

#: What says no in a variable that is yes or no.
_NO = ("", "0", "false", "no", "off")


def variables() -> dict[str, str]:
    """Return the variables that arm a process: those that are set here, and what `enable()` was given.

    A relative path in `OVERLAY_PIN`, `OVERLAY_TRUST` or `OVERLAY_LEDGER_DIR` becomes an absolute one.

    Raises:
        SelectionError: A setting cannot be understood.
    """
    found = {name: os.environ[name] for name in settings.VARIABLES if os.environ.get(name)}
    return {**found, **settings.absolute_paths(), **here().asked(), "OVERLAY": "1"}


def says_no(value: object) -> bool:
    """Return whether a value of `OVERLAY` is there and means no."""
    return isinstance(value, str) and value.strip().lower() in _NO
