"""What does the garbage collector know of: all of the heap, or did somebody freeze it?"""

from __future__ import annotations

import gc

#: A fresh Python 3.12 has some hundred frozen objects of its own; a server that froze its heap has many more.
FROZEN_BY_PYTHON = 2000

#: (`types` is a file to read, and this is imported wherever overlay is enabled.)
_FUNCTION = type(lambda: None)


def frozen() -> bool:
    """Return whether somebody has frozen the heap: of what is in there the collector tells nothing."""
    return gc.get_freeze_count() > FROZEN_BY_PYTHON


def modules_with_functions(modules: frozenset[str]) -> frozenset[str]:
    """Return those of some modules of which there are functions: anybody may hold what was executed."""
    if frozen():
        return modules
    found = set()
    for item in gc.get_objects():
        if type(item) is _FUNCTION:
            home: object = item.__module__
            if type(home) is str and home in modules:
                found.add(home)
    return frozenset(found)
