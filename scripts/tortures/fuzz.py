"""Fuzz settings, locks, lengths: an error of overlay's own or a right answer, nothing half done."""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import secrets
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from overlay import cli
from overlay.desk.output import EXIT_USAGE
from overlay.errors import LockError, OverlayError
from overlay.model import settings as _settings
from overlay.records import lock as _lock
from overlay.records import lock as lockfile
from overlay.runtime.engine import Engine
from tortures import _values


class Row(NamedTuple):
    """What came of one kind of input."""

    name: str
    inputs: int
    refused: int
    accepted: int
    #: Where something else than an error of overlay's own, or a wrong answer, came of it.
    wrong: list[str]


def _tried(name: str, count: int, one: Callable[[int], bool]) -> Row:
    """Run `one` for each number; it returns whether the input was accepted, and raises what it must not."""
    accepted, wrong = 0, []
    for number in range(count):
        try:
            accepted += one(number)
        except Exception:  # noqa: BLE001, PERF203 -- that is what is looked for
            wrong.append(f"{name} {number}: {traceback.format_exc(limit=-3)}")
    return Row(name, count, count - accepted - len(wrong), accepted, wrong)


def _refused(error: Exception, word: str) -> bool:
    """Return that an input was not accepted. Raises `AssertionError` if the message lacks a word."""
    if word not in str(error):
        raise AssertionError(f"the message does not say {word!r}") from error
    return False


def settings(seed: str, count: int) -> Row:
    """Read drawn values of every variable."""
    ids = ["megatron.recompute", "slime.loss-memory", "verl.dynamic-cp-loss", "acme/verl.x"]
    readers: dict[str, Callable[[dict[str, str]], object]] = {
        "OVERLAY": _settings.armed,
        "OVERLAY_PATCHES": lambda environ: _settings.select(ids, environ=environ, companions=ids[:1]),
        "OVERLAY_STRICT": lambda environ: _settings.strict(None, environ),
        "OVERLAY_LOG": _settings.log_level,
        "OVERLAY_PIN": _settings.pin,
        "OVERLAY_PACKS": _settings.packs,
        "OVERLAY_TRUST": _settings.trust,
        "OVERLAY_LEDGER_DIR": lambda environ: environ.get("OVERLAY_LEDGER_DIR"),
    }
    assert set(readers) == set(_settings.VARIABLES)

    def one(number: int) -> bool:
        draw = random.Random(f"{seed}/settings/{number}")
        name = draw.choice(_settings.VARIABLES)
        value = _values.text(draw, ids)
        _settings.unknown({name: value, f"OVERLAY_{value}": value, value: ""})
        try:
            found = readers[name]({name: value})
        except OverlayError as error:
            return _refused(error, name)
        if name == "OVERLAY_PATCHES":
            assert set(found) <= set(ids)  # type: ignore[call-overload]
        elif name == "OVERLAY_PACKS":
            assert all("/" not in pack and "." not in pack for pack in found)  # type: ignore[attr-defined]
        return True

    return _tried("environment values", count, one)


def example() -> _lock.Lock:
    """Return a lock that is whole."""
    target = {"project": "verl", "version": "0.8.0", "verdict": "apply", "variant": "0.8", "trusted": "no"}
    sites = {f"verl.a.b{number}:C.f": f"{number:012x}" for number in range(4)}
    entry = {"id": "verl.x", "verdict": "apply"}
    lock = {
        "format": _lock.FORMAT,
        "overlay": {"version": "0.1.0", "content": "0" * 64},
        "python": "3.11.7",
        "environment": {"torch": "2.13.0+cpu"},
        "pack": [{"name": "acme", "distribution": "acme-overlay", "version": "4.5", "content": "1" * 64}],
        "patch": [
            {**entry, "target": [{**target, "sites": sites}]},
            {**entry, "id": "verl.y", "target": []},
        ],
    }
    return _lock.with_digest(lock)


def made(draw: random.Random) -> bytes:
    """Return the bytes of a lock that is damaged, or was edited, by hand or with its digest."""
    whole = example()
    if draw.random() < 0.5:
        return _values.damaged(draw, lockfile.write(whole).encode())
    changed = whole
    for _ in range(draw.choice((1, 1, 2, 4))):
        changed = _values.edited(draw, changed)
    with contextlib.suppress(Exception):  # what is no lock any more may have no digest
        changed = _lock.with_digest(changed)
    return lockfile.write(changed).encode()


def locks(seed: str, count: int) -> Row:
    """Read damaged and edited locks: what is accepted is what its digest says, in the form of a lock."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.lock"

        def one(number: int) -> bool:
            path.write_bytes(made(random.Random(f"{seed}/locks/{number}")))
            try:
                found = lockfile.read(str(path))
            except LockError:
                return False
            assert found == _lock.with_digest(found)
            path.write_text(lockfile.write(found), encoding="utf-8")
            assert lockfile.read(str(path)) == found
            return True

        return _tried("lock files", count, one)


def commands(seed: str, count: int) -> Row:
    """Check and update damaged locks by the command: status 2 and an untouched file, or a whole new one."""
    here = example()
    here["patch"] = [{**here["patch"][0], "verdict": "conflict"}, here["patch"][1]]
    here = _lock.with_digest(here)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.lock"

        def one(number: int) -> bool:
            draw = random.Random(f"{seed}/commands/{number}")
            before = made(draw)
            path.write_bytes(before)
            way = draw.choice((["--check"], [], ["--update"]))
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
                status = cli.main(["lock", "--file", str(path), *way])
            assert list(Path(folder).iterdir()) == [path], "another file was left"
            if status == EXIT_USAGE or way != ["--update"]:
                assert path.read_bytes() == before, "the lock was touched"
            else:
                assert lockfile.read(str(path))["patch"], "half a lock was written"
            assert "Traceback" not in said.getvalue()
            return status != EXIT_USAGE

        real = Engine.lock
        Engine.lock = lambda *_: here  # type: ignore[method-assign]
        try:
            return _tried("lock --check, --update", count, one)
        finally:
            Engine.lock = real  # type: ignore[method-assign]


def _whole(parts: list[list[int]], given: list[int]) -> list[list[int]]:
    """Return parts that hold each sample once."""
    assert sorted(index for part in parts for index in part) == list(range(len(given)))
    return parts


def _divided(draw: random.Random, given: list[int], parts: int, cap: int, ranks: int) -> None:
    """Divide samples in one of the ways that there are, and look at what came of it."""
    from overlay.patches._dynamic_cp.plan import check_plan, plan_uniform
    from overlay.patches._partition import capped_partitions, fewest_parts, karmarkar_karp
    from overlay.patches._partition.equal import equal_shares

    way = draw.randrange(5)
    if way == 0:
        _whole(karmarkar_karp(given, parts, equal_size=draw.random() < 0.5), given)
    elif way == 1:
        found = _whole(capped_partitions(given, parts, cap), given)
        assert all(len(part) == 1 or sum(given[i] for i in part) <= cap for part in found)
    elif way == 2:
        _whole(capped_partitions(given, fewest_parts(given, cap), cap), given)
    elif way == 3:
        _whole(equal_shares(given, parts), given)
    else:
        check_plan(plan_uniform(given, ranks, cap, draw.choice((None, cap))), len(given), ranks)


def lengths(seed: str, count: int) -> Row:
    """Divide drawn samples by every partitioner and planner: each sample once, within the cap, or refused."""

    def one(number: int) -> bool:
        draw = random.Random(f"{seed}/lengths/{number}")
        given = _values.lengths(draw)
        parts = draw.choice((1, 2, 3, 8, 40))
        cap = draw.choice((1, 7, 100, 32768, max(given, default=1) or 1))
        ranks = draw.choice((1, 2, 3, 4, 8))
        try:
            _divided(draw, given, parts, cap, ranks)
        except (ValueError, OverlayError) as error:
            return _refused(error, " ")
        except AssertionError as error:
            # With what both upstreams refuse samples that do not divide into parts of one size.
            if str(error) != f"{len(given)} % {parts} != 0":
                raise
            return False
        return True

    return _tried("lengths", count, one)


FUZZERS = (settings, locks, commands, lengths)


def main(arguments: list[str]) -> int:
    """Print a table; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(
        prog="scripts/torture fuzz", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seed", default=str(secrets.randbelow(2**31)), help="default: a new one")
    parser.add_argument("--count", type=int, default=10_000, help="inputs of each kind (default: 10,000)")
    options = parser.parse_args(arguments)
    rows = [fuzzer(options.seed, options.count) for fuzzer in FUZZERS]
    print(f"seed {options.seed}\n\n{'':36}{'inputs':>8}{'refused':>9}{'accepted':>10}{'wrong':>7}")
    for row in rows:
        print(f"{row.name:36}{row.inputs:8}{row.refused:9}{row.accepted:10}{len(row.wrong):7}")
    wrong = [text for row in rows for text in row.wrong]
    print("\n".join(wrong[:20]))
    return int(bool(wrong))
