"""The second door: verl, from 0.9.0 on, imports this in every process that imports verl.

It serves where no start-up file is active, and does what that does: nothing unless `OVERLAY` says so. It
comes late, when `verl.protocol` has been imported; `enable()` catches up with that.
"""

from __future__ import annotations

from overlay.launch import startup

startup.start()
