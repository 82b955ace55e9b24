"""What do running calls hold? The garbage collector does not report their local variables.

`from x import f` in a function leaves the original in that call for as long as it runs, which may be as long
as the training.
"""

from __future__ import annotations

import _thread
import atexit
import sys
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Calls that can be suspended, and the attribute in which each keeps its frame.
SUSPENDED: dict[Any, str] = {
    GeneratorType: "gi_frame",
    CoroutineType: "cr_frame",
    AsyncGeneratorType: "ag_frame",
}


#: What these do with a function at the moment of a search is over soon.
_PASSING = ("overlay", "importlib", "_frozen_importlib", "_frozen_importlib_external")


def running() -> list[FrameType]:
    """Return the frames of the calls that are going on, in every thread, but for those that are soon over.

    (A list of frames that is itself in a variable of one of them would never be released.)
    """
    tops = sys._current_frames()  # noqa: SLF001 -- there is no other way
    tops[_thread.get_ident()] = sys._getframe(1)  # noqa: SLF001
    frames = []
    for top in tops.values():
        frame: FrameType | None = top
        while frame is not None:
            if not _is_passing(frame):
                frames.append(frame)
            frame = frame.f_back
    return frames


def local_variables(frame: FrameType, ids: frozenset[int], *, free: bool) -> list[tuple[str, int]]:
    """Return the local variables of a call that refer to one of `ids`, by name and id.

    `free` tells whether those of an enclosing function are meant too. Reading the variables is no more than
    that from Python 3.13 on. Before, it fills a dictionary that the frame keeps, and that would keep alive
    whatever the call lets go of later. So it is emptied, unless someone else uses it: whoever called
    `locals()`, or a debugger, which writes it back.
    """
    code = frame.f_code
    if not code.co_flags & 1 or _is_passing(frame):
        return []  # a module or class body has its names in a dictionary, like any other holder
    variables = frame.f_locals
    left_out = () if free else code.co_freevars
    found = [(name, id(value)) for name, value in variables.items() if id(value) in ids]
    if type(variables) is dict:
        traced = frame.f_trace is not None or sys.gettrace() is not None or sys.getprofile() is not None
        if not traced and sys.getrefcount(variables) <= 3:  # noqa: PLR2004 -- the frame, here, and the argument
            variables.clear()
    return [item for item in found if item[0] not in left_out]


class _Note:
    """Notes what it is compared with, and equals none of it."""

    def __init__(self) -> None:
        self.noted: list[object] = []

    def __eq__(self, other: object) -> bool:
        self.noted.append(other)
        return False

    __hash__ = None  # type: ignore[assignment]


def atexit_callbacks() -> list[object]:
    """Return the functions that `atexit` will call.

    Nothing tells them, but it compares each of them with what it is asked to forget.
    """
    note = _Note()
    try:
        atexit.unregister(note)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 -- of a callback that does not let itself be compared
        return note.noted
    return note.noted


def name_of_call(frame: FrameType) -> str:
    """Return which function a frame is a call of, as `module:name`."""
    code = frame.f_code
    return f"{frame.f_globals.get('__name__', '')}:{getattr(code, 'co_qualname', code.co_name)}"


def _is_passing(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__")
    return type(module) is str and module.partition(".")[0] in _PASSING
