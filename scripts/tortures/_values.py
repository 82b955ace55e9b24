"""What the fuzzers draw from: texts for settings, damage for files, lengths for partitioners."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

_WORDS = (
    *("all", "none", "*", "?", "[", "[!", "-", "--", ",", " "),
    *("\t", "\n", "=", "/", "..", "../..", "~", "$HOME"),
    *("1", "0", "true", "FALSE", "on", "off", "debug", "info", "acme", "a-b", "A_B"),
    *("sha256:", "sha256:" + "0" * 64, "sha256:" + "g" * 64, "overlay.lock", "/dev/zero", "/etc/passwd"),
    *("\0", "\x1b[31m", "\u202e", "\ud800", "\udcff", "\U0001f600", "\u0131", "%s", "{}", "{0.__class__}"),
    *("__import__('os')", "os:system", "file:///", "http://example.invalid/x", "x" * 4096, "٣", "²"),
)
#: What means something to a reader of JSON.
_TOKENS = (b"[", b"]", b"{", b'"', b"\\u", b":", b"\n", b"null", b"NaN", b"1e999")
#: What no file has where anything may stand.
_ODD: tuple[Any, ...] = (
    *("", "x", "../../etc", "\ud800", 0, -1, 1 << 70, 10**4000, 1.5, True),
    *([], [[]], {}, {"": {}}, None),
)


def text(draw: random.Random, words: Sequence[str]) -> str:
    """Return a value for a setting: words of its own, words that are wrong everywhere, and noise."""
    parts = []
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3, 8))):
        noise = "".join(chr(draw.randrange(1, 0x250)) for _ in range(draw.randrange(12)))
        parts.append(draw.choice((draw.choice(_WORDS), draw.choice(list(words)), noise)))
    return draw.choice(("", ",", " ", "-")).join(parts)


def damaged(draw: random.Random, whole: bytes) -> bytes:
    """Return a file with some of its bytes changed, cut, doubled, or put elsewhere."""
    data = bytearray(whole)
    for _ in range(draw.choice((1, 1, 1, 2, 5, 40))):
        start = draw.randrange(len(data) + 1)
        end = min(len(data), start + draw.choice((0, 1, 1, 8, 100)))
        piece = bytes(data[start:end])
        way = draw.randrange(7)
        if way == 0:
            data[start:end] = bytes(draw.randrange(256) for _ in range(draw.randrange(6)))
        elif way == 1:
            del data[start:]
        elif way == 2:
            del data[start:end]
        elif way == 3:
            data[start:start] = piece * draw.randrange(1, 20)
        elif way == 4:
            place = draw.randrange(len(data) + 1)
            data[place:place] = piece
        elif way == 5:
            data[start:start] = draw.choice(_WORDS).encode("utf-8", "surrogatepass")
        else:
            data[start:end] = draw.choice(_TOKENS)
    return bytes(data)


def edited(draw: random.Random, whole: Any) -> Any:
    """Return a copy of a file's data with a value somewhere replaced, removed or added."""
    if isinstance(whole, dict) and whole and draw.random() < 0.85:
        key = draw.choice(list(whole))
        made = dict(whole)
        way = draw.randrange(6)
        if way == 0:
            del made[key]
        elif way == 1:
            made[draw.choice(_WORDS)] = draw.choice(("x", 1, [], {}))
        else:
            made[key] = edited(draw, whole[key])
        return made
    if isinstance(whole, list) and whole and draw.random() < 0.85:
        made_list = list(whole)
        place = draw.randrange(len(whole))
        made_list[place] = edited(draw, whole[place])
        return made_list + made_list[:1] if draw.random() < 0.1 else made_list
    return draw.choice(_ODD)


def lengths(draw: random.Random) -> list[int]:
    """Return the tokens of the samples of a batch, in ways that are hard to divide, or that none has."""
    count = draw.choice((0, 1, 2, 3, 8, 30))
    high = draw.choice((0, 1, 2, 7, 100, 32768, 10**9, 10**18))
    ways: tuple[Callable[[], int], ...] = (
        lambda: draw.randint(0, high),
        lambda: high,
        lambda: draw.choice((0, 1, high)),
        lambda: min(high, int(draw.lognormvariate(0, 1) * high / 6) + 1),
        lambda: high // 2 + draw.randint(0, 2),
    )
    way = draw.choice(ways)
    return [way() for _ in range(count)]
