"""Run a program of the scripts: `inside.py PROGRAM [ARGUMENT...]`, such as `inside.py benches.costs start`.

Commands come here once they are in the project's environment, and so do programs that start a part of
themselves in another process.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]


def main(name: str, arguments: list[str]) -> int:
    """Import a program, with what scripts and tests share on the path, and return its exit status."""
    sys.path[0:1] = [str(SCRIPTS), str(SCRIPTS.parent / "tests" / "shared")]
    from checks import FOLDERS

    from environment.door import DOORS

    sys.path[2:2] = map(str, FOLDERS)
    folder, _, program = name.rpartition(".")
    commands = {folder: command for command, (folder, _) in DOORS.items()}
    sys.argv[:] = [f"{commands[folder]} {program}", *arguments]
    status: int = importlib.import_module(name).main(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
