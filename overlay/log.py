"""The log: one exact line per patch, on the logger `overlay`.

Unless the application has given that logger a handler of its own, lines go to standard error as they are,
so that they can be found with grep whatever the application does to the root logger.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging

_level = "info"


def set_level(level: str) -> None:
    """Set the level: one of `_settings.LOG_LEVELS`."""
    global _level  # noqa: PLW0603 -- the one setting of this module
    _level = level


def debug(message: str) -> None:
    """Log what only matters to somebody who looks for a fault."""
    _write("debug", message)


def info(message: str) -> None:
    """Log what was done."""
    _write("info", message)


def warning(message: str) -> None:
    """Log that something which was asked for did not happen."""
    _write("warning", message)


_ORDER = {"debug": 10, "info": 20, "warning": 30, "error": 40, "off": 100}


def _write(level: str, message: str) -> None:
    if _ORDER[level] < _ORDER[_level]:
        return
    # Imported here: a process that has nothing to say does not pay for `logging`.
    import logging

    logger = logging.getLogger("overlay")
    if not logger.handlers:
        logger.addHandler(_stderr_handler())
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
    logger.disabled = False  # `logging.config` disables every logger that it was not told of
    logger.log(_ORDER[level], "overlay: %s", message)


def _stderr_handler() -> logging.Handler:
    import logging

    class StandardError(logging.Handler):
        """Writes to whatever `sys.stderr` is at the time, as redirections and captures expect."""

        def emit(self, record: logging.LogRecord) -> None:
            try:
                sys.stderr.write(self.format(record) + "\n")
                sys.stderr.flush()
            except Exception:  # noqa: BLE001 -- as every handler of the standard library does
                self.handleError(record)

    handler = StandardError()
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler
