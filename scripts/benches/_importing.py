"""Import what a trainer imports, and print what that took: `_importing.py WHAT HOW [FOLDER]`, as JSON.

A program of its own: what was imported before would not be imported again. HOW is `plain`, `armed`, or
`edited`: armed, and no file is as it was tested, so that all are parsed. All is processor time in seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: What overlay took, by part: `enable()`, and what it does as modules are imported.
_times = {"enable()": 0.0, "imports": 0.0}


#: What is selected: slime's images have no verl, which lies beside slime here.
SELECTED = {"verl": None, "slime": "all,-verl.*,-megatron.dynamic-cp-names"}


def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that adds what it takes to a part, once where it comes to itself again."""
    depth = 0

    def run(*arguments: Any, **keywords: Any) -> Any:
        nonlocal depth
        depth += 1
        begin = time.process_time()
        try:
            return function(*arguments, **keywords)
        finally:
            depth -= 1
            if not depth:
                _times[part] += time.process_time() - begin

    return run


def verl() -> None:
    """Import verl's Megatron engine, as a worker does."""
    from overlay.compat import verl_imports

    verl_imports.stand_in()
    from verl.workers.engine.megatron import transformer_impl  # noqa: F401


def slime() -> None:
    """Import slime's actor, as a Ray worker does."""
    sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "shared"))
    import slime_actor_on_cpu

    slime_actor_on_cpu.prepare()
    slime_actor_on_cpu.actor_class()


def main() -> None:
    """Import, and print."""
    what, how, *folders = sys.argv[1:]
    sys.path[:0] = folders
    begin = time.process_time()
    applied = []
    if how != "plain":
        import overlay
        from overlay.runtime import session
        from overlay.source import table

        if how == "edited":
            vars(table)["files_digest"] = lambda *_: ""
        session.Session._imported = timed("imports", session.Session._imported)  # type: ignore[method-assign] # noqa: SLF001
        timed("enable()", overlay.enable)(SELECTED[what])
    {"verl": verl, "slime": slime}[what]()
    total = time.process_time() - begin
    if how != "plain":
        applied = [patch.patch for patch in overlay.status().patches if patch.state == "applied"]
    print(json.dumps({"total": total, "parts": _times, "applied": applied}))


if __name__ == "__main__":
    main()
