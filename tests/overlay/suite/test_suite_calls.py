"""Calls are counted by code, whichever name and thread they come through."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CODE = """
import sys
from overlay.suite.calls import CallCounter

names = ("function", "Class.method", "Class.fixed", "made")
calls = CallCounter([*(f"counted:{name}" for name in names), "absent:x"])
assert calls.counts() == {}
import counted
from counted import function as alias
import threading

for _ in range(3):
    alias(1)
counted.unrelated()
counted.Class().method()
counted.Class.fixed()
threads = [threading.Thread(target=alias, args=(1,)) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
found = calls.counts()
assert found == {
    "counted:function": 5, "counted:Class.method": 1, "counted:Class.fixed": 1, "counted:made": 0,
}, found
counted.made()
assert calls.counts()["counted:made"] == 1
"""

COUNTED = """
def function(value):
    return value

def unrelated():
    return function.__name__

class Class:
    def method(self):
        return 1

    @staticmethod
    def fixed():
        return 2

def make():
    def made():
        return 3
    return made

made = make()
"""


def test_calls_are_counted(tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text(COUNTED)
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
