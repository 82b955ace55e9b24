"""Answer questions about sources in one Python: `_known_answers.py QUESTIONS ANSWERS`, both files of JSON.

A program of its own, for it is run by each Python that overlay is for: what a source compiles to is not the
same in any two. Questions: by module, `asked`, each a list of words, and `texts`, by digest. Answers: by
module and digest a list in the order of the questions, and `null` for a text that this Python does not parse.
"""

from __future__ import annotations

import ast
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from overlay.reading.bindings import Module
from overlay.reading.known import python
from overlay.reading.questions import answer


def answered(asked: list[list[str]], text: str) -> list[Any] | None:
    """Return the answers for one text."""
    try:
        module = Module(ast.parse(text))
        return [answer(tuple(question), module) for question in asked]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def main(questions: str, answers: str) -> None:
    """Read the questions, and write the answers."""
    warnings.simplefilter("ignore")  # what upstreams write in strings
    given = json.loads(Path(questions).read_text(encoding="utf-8"))
    found = {
        name: {digest: answered(about["asked"], text) for digest, text in about["texts"].items()}
        for name, about in given.items()
    }
    Path(answers).write_text(json.dumps({"python": python(), "answers": found}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
