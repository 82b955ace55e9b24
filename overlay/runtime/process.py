"""The one engine of this interpreter."""

from __future__ import annotations

import _thread
import os
from functools import partial

from overlay.records import run
from overlay.runtime import unpickled
from overlay.runtime.engine import Engine

_engine: Engine | None = None
_lock = _thread.allocate_lock()


def here() -> Engine:
    """Return the engine of this interpreter, which is made when it is first asked for."""
    global _engine  # noqa: PLW0603 -- one engine per interpreter is what the package is
    if _engine is None:
        with _lock:
            if _engine is None:
                _engine = Engine(speaks=True)
                unpickled.tell = partial(_engine.status, looks=False)
                unpickled.claims = _engine.claims
                run.tell = _engine.last_words
                if hasattr(os, "register_at_fork"):
                    os.register_at_fork(
                        before=_engine.before_fork,
                        after_in_parent=_engine.after_fork,
                        after_in_child=_engine.note_fork,
                    )
    return _engine


def leaving_out(patch: str) -> str:
    """Return what to set or to call to leave a patch out, for a message of that patch."""
    return here().chosen().without([patch])
