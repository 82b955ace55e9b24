"""The forms of the words by which patches and defects are known."""

from __future__ import annotations

import re

ID = re.compile(r"[a-z][a-z0-9]*\.[a-z][a-z0-9]*(-[a-z0-9]+)*")
UPSTREAM = re.compile(r"[\w.-]+/[\w.-]+(#\d+|@[0-9a-f]{7,40})")
