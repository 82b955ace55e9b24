"""For all tests: how long an example of Hypothesis takes says something of the machine and nothing else."""

from __future__ import annotations

import os

from hypothesis import settings

if "CI" not in os.environ:  # where Hypothesis has such a profile of its own
    settings.register_profile("overlay", deadline=None)
    settings.load_profile("overlay")
