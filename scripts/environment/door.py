"""The way in that all commands share: `enter(__file__)` becomes the command's program, in `.venv`.

A program is a file in the command's folder, with `main(arguments)` that returns the exit status; the first
line of its docstring says what it does. What several programs share is in files that begin with `_`.
`--help` is answered here, from the files alone, so that it needs no environment.
"""

import os
import sys

if sys.version_info < (3, 10):
    sys.exit("this needs a python3 of at least version 3.10 to start, and found " + sys.version.split()[0])
sys.dont_write_bytecode = True

import ast
from pathlib import Path

from environment import setup

SCRIPTS = Path(__file__).resolve().parents[1]
#: Of each command: the folder of its programs, and the one that needs no name.
DOORS = {
    "demo": ("demos", "dynamic_cp"),
    "test": ("testing", "suite"),
    "bench": ("benches", "costs"),
    "torture": ("tortures", ""),
    "matrix": ("records", "tested"),
    "gpu": ("devices", "gpu"),
}


def programs(folder: str) -> "dict[str, str]":
    """Return the programs in a folder, and what each says of itself. Nothing is imported."""
    files = sorted(path for path in (SCRIPTS / folder).glob("*.py") if not path.name.startswith("_"))
    return {path.stem: documented(path).partition("\n")[0] for path in files}


def documented(path: Path) -> str:
    """Return the docstring of a file."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def chosen(name: str, arguments: "list[str]") -> "tuple[str, list[str]]":
    """Return the module that a command line asks for, empty if it asks for none, and the arguments left."""
    folder, default = DOORS[name]
    if arguments and arguments[0] in programs(folder):
        return f"{folder}.{arguments[0]}", arguments[1:]
    return (f"{folder}.{default}" if default else ""), arguments


def usage(name: str) -> str:
    """Return what a command says of itself, and the programs among which it has a choice."""
    folder, default = DOORS[name]
    lines = [documented(SCRIPTS / name)]
    found = programs(folder)
    if len(found) > 1:
        lines += ["", f"scripts/{name} {'[NAME]' if default else 'NAME'} [--help]", ""]
        width = max(map(len, found)) + 2
        for program, text in found.items():
            lines.append(f"  {program:{width}}{text}{' (the default)' if program == default else ''}")
    return "\n".join(lines)


def enter(path: str) -> None:
    """Become the program that the command line of a command asks for. `path` is the command's file."""
    name, arguments = os.path.basename(path), sys.argv[1:]
    if arguments and arguments[0] in ("-h", "--help"):
        print(usage(name))
        sys.exit()
    module, rest = chosen(name, arguments)
    if not module:
        print(usage(name), file=sys.stderr)
        sys.exit(2)
    setup.run_in(module, rest)
