"""Write `patches/_index.py`, which stands for the patches until one is asked for more than arming takes.

With `--check` nothing is written, and the file is compared with what would be.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from overlay.catalogue.deferred import facts
from overlay.catalogue.registry import load_patches

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "patches" / "_index.py"

HEAD = '''"""What arming the patches asks of them. Written by `./scripts/matrix index`: not to be edited."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INDEX: dict[str, dict[str, Any]] = {
'''


def text() -> str:
    """Return the file: a line for each field, as the formatter would leave it."""
    lines = [HEAD]
    for name, patch in sorted(load_patches().items()):
        lines.append(f'    "{name}": {{\n')
        for field, value in facts(patch).items():
            if isinstance(value, tuple) and len(value) > 1:
                lines += [
                    f'        "{field}": (\n',
                    *(f'            "{one}",\n' for one in value),
                    "        ),\n",
                ]
                continue
            lines.append(f'        "{field}": {repr(value).replace(chr(39), chr(34))},\n')
        lines.append("    },\n")
    return "".join([*lines, "}\n"])


def main(arguments: list[str]) -> int:
    """Write the index, or compare it."""
    parser = argparse.ArgumentParser(prog="scripts/matrix index", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 if it is not what would be written")
    options = parser.parse_args(arguments)
    wanted = text()
    if options.check:
        return int(not FILE.exists() or FILE.read_text() != wanted)
    FILE.write_text(wanted)
    return 0
