"""Doing something in a forked child, which leaves no trace in this process."""

from __future__ import annotations

import gc
import json
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

from overlay.runtime import search


def in_a_child(work: Callable[[], dict[str, Any]], seconds: int = 60) -> dict[str, Any]:
    """Return what some work returned as JSON. What it raised, and how it ended else, is under `wrong`."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover -- another process
        signal.alarm(seconds)
        os.close(reading)
        # Nobody in this process holds what the child will import: the engine need not look through all of it,
        # which is a hundred times more once other tests have imported torch, nor count it each time.
        gc.freeze()
        search.frozen = lambda: False
        try:
            result = work()
        except BaseException:  # noqa: BLE001 -- it is told
            result = {"wrong": [f"raised {traceback.format_exc()}"]}
        with os.fdopen(writing, "w") as stream:
            stream.write(json.dumps(result))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    _, code = os.waitpid(child, 0)
    return dict(json.loads(text)) if text else {"wrong": [f"the child ended with {code}"]}
