"""What a rank need not do for its cases: look for garbage, and take Python apart when all is told.

To be imported first, before an upstream is: what that imports is what the collector would look through.
"""

from __future__ import annotations

import gc
import os
import sys

gc.disable()


def leave() -> None:
    """End this process with success, and nothing but its output put right."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
