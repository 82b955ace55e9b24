"""Benchmark (h): thousands of ranks that are compared through one real TCPStore on this machine.

    ./scripts/bench agreement                       # 4,096 ranks
    ./scripts/bench agreement --ranks 256

Each rank is a thread with a connection of its own, and does all that a real one does. The ranks share this
machine's cores, which is most of the wall clock here and nothing in a job, where each has its own. What stays
in a job is what the store takes, which has a process of its own here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

from overlay.compat.agreement import Comparison
from overlay.errors import AgreementError
from overlay.records.agreement import Statement

HERE = "127.0.0.1"
INSIDE = Path(__file__).resolve().parents[1] / "environment" / "inside.py"
PROCESSES = 2
#: A rank's facts: as many, and as long, as those of a job with some forty patches.
FACTS = {"overlay": "1", **{f"fact {number}": f"{number:064x}" for number in range(200)}}
#: By case, the ranks of a world that say something else.
CASES = {"all agree": slice(0), "one differs": slice(7, 8), "every second differs": slice(1, None, 2)}


def client(port: int, part: int, world: int) -> None:
    """Be some of the ranks, in one case after another."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    threading.stack_size(256 * 1024)
    # Thousands of threads that ask for the interpreter every 5 ms get nothing else done.
    sys.setswitchinterval(5.0)
    stores = {
        rank: TCPStore(HERE, port, is_master=False, timeout=timedelta(seconds=300))
        for rank in range(part, world, PROCESSES)
    }
    for name, chosen in CASES.items():
        odd, told, go = {*range(world)[chosen]}, Counter[str](), threading.Event()

        def take_part(rank: int, name: str = name, odd: set[int] = odd, go: threading.Event = go) -> str:
            said = Statement(facts={**FACTS, "strict": "yes" if rank in odd else "no"})
            go.wait()
            try:
                Comparison(stores[rank], name, range(world), rank).agree(said, 300.0)
            except AgreementError as error:
                return str(error)
            return ""

        def count(rank: int, told: Counter[str] = told, one: object = take_part) -> None:
            told[one(rank)] += 1  # type: ignore[operator]

        threads = [threading.Thread(target=count, args=(rank,)) for rank in stores]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        sys.stdin.readline()
        go.set()
        for thread in threads:
            thread.join()
        print(json.dumps(told), flush=True)


def table(world: int) -> str:
    """Return what comparing so many ranks takes, case by case."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore(HERE, 0, is_master=True, timeout=timedelta(seconds=300), wait_for_workers=False)
    words = [sys.executable, str(INSIDE), "benches.agreement", "--client"]
    clients = [
        subprocess.Popen(
            [*words, json.dumps([store.port, part, world])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for part in range(PROCESSES)
    ]
    lines = [f"{world:,} ranks{'wall':>27}{'store: CPU':>12}"]
    try:
        for name, chosen in CASES.items():
            assert all(one.stdout and one.stdout.readline() == "ready\n" for one in clients)
            begin, used = time.monotonic(), time.process_time()
            for one in clients:
                assert one.stdin
                one.stdin.write("go\n")
                one.stdin.flush()
            found = [Counter(json.loads(one.stdout.readline())) for one in clients if one.stdout]
            told = sum(found, Counter())
            wall, used = time.monotonic() - begin, time.process_time() - used
            (text,) = told  # all are told the same
            assert told[text] == world
            assert bool(text) == bool(range(world)[chosen]), text[:500]
            lines.append(f"{name:30}{wall:7.2f}s{used:11.2f}s")
    finally:
        for one in clients:
            one.kill()
            one.wait(60)
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Print a table for each number of ranks."""
    parser = argparse.ArgumentParser(description="How long many ranks take to agree.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4096], help="how many")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    # torch asks for a name at each connection. By TCP, which name servers refuse, it is told no at once.
    os.environ |= {"RES_OPTIONS": "use-vc attempts:1 timeout:1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    if options.client:
        client(*json.loads(options.client))
        return 0
    for world in options.ranks:
        print(table(world), flush=True)
    return 0
