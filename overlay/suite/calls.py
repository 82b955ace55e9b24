"""Counts how often the functions at sites are called, without a wrapper that an alias would bypass.

What is counted is code objects: the code of the replacement under overlay, of the original without. So a call
counts, whichever alias it went through. From Python 3.12 on `sys.monitoring` reports every call of what may
stand at a site and the first call of all else. Before, the C profiler of the standard library counts all
calls, thread by thread, when they return.
"""

from __future__ import annotations

import sys
import threading

from overlay.base.record import TYPE_CHECKING
from overlay.installing.live_site import current, function_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType, FrameType
    from typing import Any

#: A tool of `sys.monitoring` that has no name of its own.
_TOOL = 4


class CallCounter:
    """Counts calls of the functions at some sites in this process, from now on."""

    def __init__(self, sites: Iterable[str]) -> None:
        self._sites = tuple(sites)
        self._counted: dict[CodeType, int] = {}
        self._profiles: list[Any] = []
        if not self._sites:
            return
        if sys.version_info >= (3, 12):
            self._monitor()
        else:
            threading.setprofile(self._begin_thread)
            self._profile()

    def counts(self) -> dict[str, int]:
        """Return the number of calls by site, for sites whose module has been imported."""
        counted = dict(self._counted)
        for profile in self._profiles:
            for entry in profile.getstats():
                if not isinstance(entry.code, str):
                    counted[entry.code] = counted.get(entry.code, 0) + entry.callcount
        found = {}
        for site in self._sites:
            module = sys.modules.get(site.partition(":")[0])
            raw = None if module is None else current(module, site)[1]
            code = getattr(function_of(raw), "__code__", None)
            if code is not None:
                found[site] = counted.get(code, 0)
        return found

    def _profile(self) -> None:
        from cProfile import Profile

        profile = Profile(subcalls=False, builtins=False)
        self._profiles.append(profile)
        profile.enable()

    def _begin_thread(self, _frame: FrameType, _event: str, _argument: object) -> None:
        """Give a new thread a profile of its own, which replaces this function there."""
        self._profile()

    if sys.version_info >= (3, 12):

        def _monitor(self) -> None:
            import os

            monitoring = sys.monitoring
            # A replacement is called as its site is, or stands in a patch file.
            names = {site.rpartition(":")[2].rpartition(".")[2] for site in self._sites}
            patches = os.sep + "patches" + os.sep

            def called(code: CodeType, _offset: int) -> object:
                if code.co_name not in names and patches not in code.co_filename:
                    return monitoring.DISABLE
                self._counted[code] = self._counted.get(code, 0) + 1
                return None

            if monitoring.get_tool(_TOOL) is None:
                monitoring.use_tool_id(_TOOL, "overlay suite")
                monitoring.register_callback(_TOOL, monitoring.events.PY_START, called)
                monitoring.set_events(_TOOL, monitoring.events.PY_START)
