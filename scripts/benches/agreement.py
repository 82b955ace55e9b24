"""Benchmark (h): thousands of ranks that are compared through one real TCPStore on this machine.

    ./scripts/bench agreement                         # 4,096 ranks, and 65,536
    ./scripts/bench agreement --ranks 256 --timeout 1

Each rank does all that a real one does, through a connection of its own as long as a process may have so
many; with more ranks several share one. The ranks are threads of a few processes, which share this
machine's cores: what they need for themselves is most of the wall clock here, and nothing in a job, where
each has cores of its own. What does not go away in a job is what the store and the first rank take, which
live in one process.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from overlay.compat.comparison import Talk
from overlay.pinning import agreement as facts
from overlay.pinning import lock as locks

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = "127.0.0.1"
#: torch asks for a name at each connection, and a name server for thousands of them is soon 5 s an answer: by
#: TCP, which it does not take, it says so at once.
NO_NAMES = "use-vc attempts:1 timeout:1"
INSIDE = Path(__file__).resolve().parents[1] / "environment" / "inside.py"
PROCESSES, CONNECTIONS = 2, 4096
#: Seconds that a store waits for a client and a client for the store, at most.
PATIENCE = timedelta(seconds=300)
#: A rank's facts: so many, as long as those of a job with forty patches.
FACTS = 400


class Case(NamedTuple):
    """What some ranks do that is not what all do. `world` stands for their number."""

    name: str
    #: Ranks with a fact of their own, ranks that do not come, and seconds over which the others do.
    odd: str = "()"
    silent: str = "()"
    over: float = 0.0
    first_is_odd: bool = False


CASES = (
    Case("all agree"),
    Case("one differs", odd="(world // 2,)"),
    Case("every second differs", odd="range(1, world, 2)"),
    Case("the first alone differs", first_is_odd=True),
    Case("all agree, come over", over=0.8),
    Case("one is silent", silent="(world // 2,)"),
    Case("every second is silent", silent="range(1, world, 2)"),
    Case("all but the first are silent", silent="range(1, world)"),
    Case("the first is silent", silent="(0,)"),
)


class Counting:
    """A store that counts what is asked of it, and the bytes of keys and values both ways."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.requests = self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*arguments: Any) -> Any:
            found = method(*arguments)
            self.requests += name != "has_extended_api"
            self.bytes += size(arguments) + size(found)
            return found

        return call


def size(value: Any) -> int:
    """Return the bytes of keys and values in the arguments or the result of a request."""
    if isinstance(value, (list, tuple)):
        return sum(map(size, value))
    return len(value) if isinstance(value, (str, bytes)) else 8 if isinstance(value, int) else 0


class Facts(dict[str, str]):
    """What many ranks say of themselves, with a digest that is kept."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def digest(self) -> str:
        """Return the digest by which ranks are compared."""
        return locks.digest_of(self)


@functools.cache
def facts_of(*, odd: bool) -> Facts:
    """Return what a rank says of itself."""
    facts = Facts(overlay="enabled", **{f"fact {number}": f"{number:064x}" for number in range(FACTS)})
    return Facts(facts, **{"fact 7": "another"}) if odd else facts


class Ranks:
    """The ranks of one process that is not the first rank's, and their connections."""

    def __init__(self, port: int, ranks: Sequence[int], connections: int) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        threading.stack_size(256 * 1024)
        # Thousands of threads that all ask for the interpreter every 5 ms get nothing else done. They give it
        # back with each request.
        sys.setswitchinterval(5.0)
        # Each real rank has a core for its own digest, and here it is computed once.
        vars(facts)["digest_of"] = functools.cache(Facts.digest)
        self._stores = [TCPStore(HERE, port, is_master=False, timeout=PATIENCE) for _ in range(connections)]
        self._shares = [ranks[place::connections] for place in range(connections)]

    def take_part(self, name: str, world: int, timeout: float, case: Case) -> dict[str, Any]:
        """Take part in one comparison: what the ranks were told, when they were, and what one has asked."""
        odd, silent = set(eval(case.odd, {"world": world})), set(eval(case.silent, {"world": world}))  # noqa: S307
        go = threading.Event()
        told: Counter[str] = Counter()
        asked: list[int] = []

        def work(place: int) -> None:
            store, ranks = self._stores[place], self._shares[place]
            talks = {rank: Talk(Counting(store), name, range(world)) for rank in ranks if rank not in silent}
            facts = {rank: facts_of(odd=rank in odd) for rank in talks}
            go.wait()
            if case.over and talks:
                time.sleep(case.over * timeout * place / len(self._stores))
            calls = {rank: talk.join(rank, facts[rank], {}, timeout) for rank, talk in talks.items()}
            for rank, talk in talks.items():
                heard = talk.hear(calls[rank], rank, timeout) if calls[rank] else None
                told[talk._nobody_called(rank, timeout) if heard is None else heard] += 1  # noqa: SLF001
                asked.append(talk.keys._store.requests)  # noqa: SLF001

        threads = [threading.Thread(target=work, args=(place,)) for place in range(len(self._stores))]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        sys.stdin.readline()
        go.set()
        for thread in threads:
            thread.join()
        return {"told": dict(told), "end": time.monotonic(), "asked": max(asked, default=0)}


def client(port: int, first: int, last: int, connections: int) -> int:
    """Be some of the ranks, for one case after another."""
    ranks = Ranks(port, range(first, last), connections)
    print("connected", flush=True)
    for line in sys.stdin:
        name, world, timeout, case = json.loads(line)
        print(json.dumps(ranks.take_part(name, world, timeout, Case(*case))), flush=True)
    return 0


class Job:
    """A world of ranks: this process has the store and the first rank, others have the rest."""

    def __init__(self, world: int, timeout: float) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self.world, self.timeout = world, timeout
        self.connections = min(world - 1, CONNECTIONS)
        self._store = TCPStore(HERE, 0, is_master=True, timeout=PATIENCE, wait_for_workers=False)
        bounds = [1 + (world - 1) * part // PROCESSES for part in range(PROCESSES + 1)]
        shares = [self.connections * part // PROCESSES for part in range(PROCESSES + 1)]
        # fmt: off
        self._clients = [
            subprocess.Popen(
                [sys.executable, str(INSIDE), "benches.agreement", "--client",
                 json.dumps([self._store.port, *bounds[part : part + 2], shares[part + 1] - shares[part]])],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for part in range(PROCESSES)
        ]
        # fmt: on
        for process in self._clients:
            self._hear(process, "connected")

    def _hear(self, process: subprocess.Popen[str], wanted: str = "") -> str:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line or (wanted and line != wanted):
            raise RuntimeError(f"a process of ranks said {line!r}")
        return line

    def _say(self, line: str) -> None:
        for process in self._clients:
            assert process.stdin is not None
            process.stdin.write(f"{line}\n")
            process.stdin.flush()

    def compare(self, case: Case) -> dict[str, Any]:
        """Compare all ranks, and return what came of it."""
        self._say(json.dumps([case.name, self.world, self.timeout, case]))
        for process in self._clients:
            self._hear(process, "ready")
        store = Counting(self._store)
        talk = Talk(store, case.name, range(self.world))
        facts = facts_of(odd=case.first_is_odd)
        silent = eval(case.silent, {"world": self.world})  # noqa: S307
        begin, used = time.monotonic(), time.process_time()
        self._say("go")
        own, told = time.thread_time(), []
        if 0 not in silent:
            told = [talk.lead(facts, {}, self.timeout)]
        own = time.thread_time() - own
        found = [json.loads(self._hear(process)) for process in self._clients]
        used = time.process_time() - used
        return {
            "wall": max([time.monotonic(), *(one["end"] for one in found)]) - begin,
            "told": sum((Counter(one["told"]) for one in found), Counter(told)),
            "asked": max(one["asked"] for one in found),
            "requests": store.requests,
            "bytes": store.bytes,
            "first": own,
            "store": used - own,
        }

    def end(self) -> None:
        """Let all processes of ranks end."""
        for process in self._clients:
            assert process.stdin is not None
            process.stdin.close()
            process.kill()  # they have nothing to lose, and thousands of connections to give back
        for process in self._clients:
            process.wait(60)


def table(world: int, timeout: float, cases: Sequence[Case] = CASES) -> str:
    """Return what comparing so many ranks takes, case by case."""
    job = Job(world, timeout)
    try:
        return _compared(job, timeout, cases)
    finally:
        job.end()


def _compared(job: Job, timeout: float, cases: Sequence[Case]) -> str:
    world = job.world
    lines = [
        f"{world:,} ranks through {job.connections:,} connections; who is silent is waited for {timeout:g} s",
        (
            f"{'':30}{'wall':>8}{'waits':>8}{'store':>8}{'first rank: CPU':>17}{'requests':>10}{'bytes':>12}"
            f"{'others: requests':>18}"
        ),
    ]
    for case in cases:
        found = job.compare(case)
        if len(found["told"]) != 1:
            kinds = [f"{count:,} ranks: {text[:200]}" for text, count in found["told"].most_common(5)]
            raise RuntimeError(f"{case.name}: not all were told the same within {timeout:g} s: {kinds}")
        (words,) = found["told"]
        assert bool(words) == bool(case.odd != "()" or case.silent != "()" or case.first_is_odd), words[:500]
        waits = timeout * (case.over or (case.silent != "()"))
        lines.append(
            f"{case.name + (f' {waits:g} s' if case.over else ''):30}{found['wall']:7.2f}s{waits:7.1f}s"
            f"{found['store']:7.2f}s{1e3 * found['first']:14.1f} ms{found['requests']:10,}"
            f"{found['bytes']:12,}{found['asked']:18,}"
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Print a table for each number of ranks."""
    parser = argparse.ArgumentParser(description="How long many ranks take to agree.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4096, 65536], help="how many")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds to wait for who is silent")
    parser.add_argument("--cases", nargs="+", metavar="WORDS", help="only cases with these words")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    os.environ |= {"RES_OPTIONS": NO_NAMES, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    if options.client:
        return client(*json.loads(options.client))
    cases = [case for case in CASES if not options.cases or any(one in case.name for one in options.cases)]
    for world in options.ranks:
        print(table(world, options.timeout, cases), flush=True)
    return 0
