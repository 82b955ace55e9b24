"""What the programs of ranks share. To be imported first, before an upstream is.

A rank need not look for garbage: what an upstream imports is what the collector would look through.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

gc.disable()


def te_stand_in() -> None:
    """Stand in for Transformer Engine if the environment asks for it (`launcher`)."""
    if os.environ.get("TE_STAND_IN"):
        from overlay.compat import cpu_transformer_engine

        cpu_transformer_engine.install()


def tell(report: IO[str], name: str, case: Callable[[], Any]) -> None:
    """Run a case, and write a line with what it returned or raised."""
    try:
        result = case()
    except Exception as error:  # noqa: BLE001 - whatever it is, the test judges it
        import traceback

        result = {"error": type(error).__name__, "message": str(error), "trace": traceback.format_exc()}
    report.write(json.dumps([name, result]) + "\n")
    report.flush()


def be_a_rank(main: Callable[[str, Path, list[str]], None], arguments: list[str]) -> None:
    """Run a program's `main` to the end of this process."""
    import faulthandler

    faulthandler.enable()
    main(arguments[0], Path(arguments[1]), arguments[2:])
    leave()


def leave() -> None:
    """End this process with success, and nothing but its output put right."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
