"""Run one attack on overlay; scripts/torture starts this in the project's environment.

An attack is a file, `scripts/tortures/NAME.py`, with `main(arguments)` that returns the exit status: 0 if
nothing was found, 1 if something was. The first line of its docstring says what it does. What several share
is in files whose names begin with an underscore, imported as `tortures._name`.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "tortures"


def attacks() -> dict[str, str]:
    """Return what each attack says of itself, by name. Nothing is imported."""
    files = sorted(path for path in FOLDER.glob("*.py") if not path.name.startswith("_"))
    return {path.stem: _first_line(path) for path in files}


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def main(arguments: list[str] | None = None) -> int:
    """Run the attack that is named first, with the other arguments. Status 2 if there is none."""
    given = sys.argv[1:] if arguments is None else arguments
    known = attacks()
    if not given or given[0] not in known:
        asked = given and given[0] in ("-h", "--help")
        lines = ["usage: scripts/torture ATTACK [--help]", ""]
        lines += [f"  {name:12}{text}" for name, text in known.items()]
        print("\n".join(lines), file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    status: int = importlib.import_module(f"tortures.{given[0]}").main(given[1:])
    return status


if __name__ == "__main__":
    sys.exit(main())
