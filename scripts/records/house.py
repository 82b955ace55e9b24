"""Print the rooms of the house: what each answers, its files, and where its arrows point.

An arrow is an import, also a late one or one for types alone. A floor is the longest way down.
"""

from __future__ import annotations

import argparse
import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "overlay"
#: What lies in `overlay/` itself, which users and authors of patches import, by the question it answers.
FACE = {
    "(errors)": "What can go wrong, and which version is this?",
    "(words)": "What do patch, contract, defect, verdict, effect, ledger and log mean?",
    "(doors)": "What do users, trainers and tests call?",
}
PLACES = {"errors": "(errors)", "_version": "(errors)"} | dict.fromkeys(
    ("patch", "defect", "verdict", "effect", "ledger", "log"), "(words)"
)


def files(folder: Path = ENGINE) -> dict[str, Path]:
    """Return the modules of the engine by their dotted names, without the `__init__` of rooms."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        if parts[-1] != "__init__":
            found[".".join(parts)] = path
        elif len(parts) == 2:
            found[parts[0]] = path
    return found


def room_of(module: str) -> str:
    """Return the room of a module of the engine."""
    _, *rest = module.split(".")
    if len(rest) > 1:
        return rest[0]
    return PLACES.get(rest[0] if rest else "", "(doors)")


def arrows(folder: Path = ENGINE) -> dict[str, set[str]]:
    """Return for each module of the engine those that it imports."""
    known = files(folder)
    found: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                said = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                said = [
                    inner if (inner := f"{node.module}.{alias.name}") in known else str(node.module)
                    for alias in node.names
                ]
            else:
                continue
            found[name] |= {one for one in said if one in known and one != name}
    return found


def between_rooms(modules: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return for each room those that its modules import from."""
    found: dict[str, set[str]] = {room_of(name): set() for name in modules}
    for name, others in modules.items():
        found[room_of(name)] |= {room_of(other) for other in others} - {room_of(name)}
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return a way round, empty if arrows lead back to nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def floors(graph: dict[str, set[str]]) -> dict[str, int]:
    """Return how many nodes each stands on, in the longest way down. Raises `ValueError` for a circle."""
    if circle(graph):
        msg = f"a circle: {' -> '.join(circle(graph))}"
        raise ValueError(msg)

    @cache
    def floor(node: str) -> int:
        return 1 + max((floor(other) for other in graph[node]), default=-1)

    return {node: floor(node) for node in graph}


def question(room: str) -> str:
    """Return what a room answers: the first sentence of its `__init__`."""
    if room in FACE:
        return FACE[room]
    tree = ast.parse((ENGINE / room / "__init__.py").read_text(encoding="utf-8"))
    return " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())


def picture() -> str:
    """Return the rooms from the roof to the ground."""
    modules = arrows()
    rooms = between_rooms(modules)
    level = floors(rooms)
    lines = []
    for room in sorted(rooms, key=lambda room: (-level[room], room)):
        lines.append(f"{level[room]:2}  {room}, {len(held(room))} files: {question(room)}")
        lines.append(f"    -> {', '.join(sorted(rooms[room])) or 'nothing'}")
    return "\n".join(lines)


def held(room: str) -> list[Path]:
    """Return the files of a room."""
    return [path for name, path in files().items() if room_of(name) == room]


def main(arguments: list[str]) -> int:
    """Print the picture."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args(arguments)
    print(picture())
    return 0
