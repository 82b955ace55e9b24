"""What a run and its plugin call each other by. The plugin itself enables overlay when it is imported."""

from __future__ import annotations

PLUGIN = "overlay.suite.plugin"

#: The variable that names the file with what a process is to do. `overlay suite` sets it, nobody else.
VARIABLE = "OVERLAY_SUITE"
