"""Source trees that no audit may choke on, and the program that audits them under limits.

    python _hostile.py FOLDER [WORD ...]

makes them below the folder and prints a line of JSON for each: its name, the verdict, the seconds of the
processor that it took, and the reason. The process may take no more than `MEMORY` bytes.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

PATCH = "megatron.agreement"
#: Of address space: many times what an audit takes, and a small part of what is built from 50 MB of source.
MEMORY = 3 << 29

_NAME = "_set_global_memory_buffer"
#: Contents of the module that holds the patch's site.
TEXTS: dict[str, bytes] = {
    "nothing": b"",
    "null bytes": b"def f(): pass\n\0\0\0",
    "no UTF-8": b"x = '\xff\xfe'\n",
    "unknown encoding": b"# coding: ../../evil\nx = 1\n",
    "encoding that is none of text": b"# coding: zlib_codec\nx = 1\n",
    "encoding that lies": b"\xef\xbb\xbf# coding: latin-1\nx = 1\n",
    "parentheses": b"x = " + b"(" * 100_000 + b")" * 100_000,
    "brackets that mix": b"x = " + b"[({" * 50_000,
    "minus signs": b"x = " + b"-" * 500_000 + b"1",
    "attributes": b"x = a" + b".a" * 200_000,
    "calls": b"x = a" + b"()" * 200_000,
    "a sum": b"x = 1" + b" + 1" * 100_000,
    "nested f-strings": b"x = " + b"f'{" * 1000,
    "conditions": b"if a:\n pass\n" + b"elif a:\n pass\n" * 100_000,
    "indentation": b"".join(b" " * level + b"if 1:\n" for level in range(1000)),
    "lambdas": b"x = " + b"lambda: " * 100_000 + b"1",
    "a great number": b"x = 0x" + b"f" * 2_000_000,
    "digits": b"x = " + b"9" * 1_000_000,
    "a decorator": b"@a" + b".a" * 900 + f"\ndef {_NAME}(): pass\n".encode(),
    "many of them": f"def {_NAME}(): pass\n".encode() * 40_000,
    "itself": f"from megatron.core.parallel_state import {_NAME}\n".encode(),
    "a star": b"from megatron.core.parallel_state import *\n" * 1000,
    "just under the limit": b"x = [" + b"a," * 1_000_000 + b"]",
}


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _large(path: Path) -> None:
    path.write_bytes(b"x = 1\n" * (50_000_000 // 6))


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


#: What is no file that can be read to its end.
FILES: dict[str, Callable[[Path], None]] = {
    "a pipe": _fifo,
    "an endless device": _endless,
    "a link to itself": _loop,
    "a folder": Path.mkdir,
    "50 MB": _large,
    "a terabyte that is not there": _sparse,
}
#: Files of the tree that are not the module itself, and may be any of the above.
OTHERS = (
    "megatron/core/package_info.py",
    "megatron/core/__init__.py",
    "megatron_core-0.16.1.dist-info/METADATA",
)
MODULE = "megatron/core/parallel_state.py"


def trees(root: Path) -> dict[str, Path]:
    """Make the trees, and return them by name."""
    made: dict[str, Path] = {}

    def tree(name: str) -> Path:
        folder = made[name] = root / str(len(made))
        for path in (*OTHERS, MODULE):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text("")
        numbers = "MAJOR = 0\nMINOR = 16\nPATCH = 1\nPRE_RELEASE = ''\n"
        (folder / OTHERS[0]).write_text(numbers)
        (folder / OTHERS[2]).write_text("Metadata-Version: 2.1\nName: megatron-core\nVersion: 0.16.1\n")
        return folder

    for name, text in TEXTS.items():
        (tree(name) / MODULE).write_bytes(text)
    for path in (MODULE, *OTHERS):
        for name, make in FILES.items():
            place = tree(f"{path} is {name}") / path
            place.unlink()
            make(place)
    (tree("a folder in itself") / "megatron/core/core").symlink_to("..")
    return made


def main(root: Path, words: list[str]) -> None:
    """Audit each tree whose name holds one of the words, all without words."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    import overlay
    from overlay.source.registry import load_patches

    for name, folder in trees(root).items():
        if words and not any(word in name for word in words):
            continue
        began = time.process_time()
        verdicts = {one.patch: one for one in overlay.plan([*load_patches()], str(folder)).verdicts}
        seconds = time.process_time() - began
        assert not any(one.verdict == "apply" for one in verdicts.values()), name
        print(json.dumps([name, verdicts[PATCH].verdict, seconds, verdicts[PATCH].reason]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
