"""Run cases of `slime_step_cases` with the slime that stands first on the path, alone or with overlay.

    python slime_step_main.py PATCHES FOLDER SEED CASE...

PATCHES are those that are selected, empty for slime alone. FOLDER has slime's scripts. Imports once, and
forks the ranks of each case. For each that has ended there is a line in FOLDER/rows.jsonl: its name, what its
ranks found, its seconds.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from ports import free_port

import overlay
from overlay.compat.ranks import quick_rank

SELECTED = sys.argv[1]
if SELECTED:
    overlay.enable(SELECTED, strict=True)  # before anything of slime is imported, as in a job

import slime_actor_on_cpu  # noqa: E402
from slime_step_cases import CASES, Case  # noqa: E402

slime_actor_on_cpu.prepare()

import slime.ray.rollout  # noqa: E402 - before the ranks are forked
import slime.utils.arguments  # noqa: E402, F401
import slime_actor_on_cpu.layers  # noqa: E402
import torch  # noqa: E402
from slime_actor_on_cpu import arguments, published  # noqa: E402
from slime_actor_on_cpu.exact import exact_cross_entropy  # noqa: E402
from slime_actor_on_cpu.watched import Watched  # noqa: E402

#: Where slime's scripts are.
SCRIPTS = Path(sys.argv[2])
#: Who has asked for this, and waits.
PARENT = os.getppid()
#: Seconds that the other ranks get once one has failed: to say what they have to say.
GRACE = 2.0


def main(folder: Path, seed: int, names: list[str]) -> None:
    """Run the cases in order."""
    torch.set_num_threads(1)
    # slime collects garbage several times in a step: on the ranks, what is imported is not looked through.
    gc.freeze()
    actor_class = slime_actor_on_cpu.actor_class()
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as report:
        for number, case in enumerate(case for case in CASES if case.name in names):
            place = folder / str(number)
            arguments.write_model(place / "model", case.sizes)
            line = arguments.command_line(place / "model", case.sizes, case.ranks, *case.command())
            line += ["--seed", str(seed)]
            if case.publishes == "disk":
                line += ["--update-weight-disk-dir", str(place / "published")]
            started = time.monotonic()
            args = arguments.parse(line, timeout=case.timeout, exact=case.memory is None)
            found = _run(case, args, place, seed, actor_class)
            report.write(json.dumps([case.name, found, time.monotonic() - started]) + "\n")
            report.flush()


def _run(case: Case, args: Any, place: Path, seed: int, actor_class: Any) -> list[dict[str, Any]]:
    """Return what each rank found, or raised, or that it was still waiting."""
    port = free_port()
    sys.stdout.flush()
    sys.stderr.flush()
    children = {}
    for rank in range(case.ranks):
        child = os.fork()
        if not child:
            _be(rank, case, args, place, seed, actor_class, port)
        children[child] = rank
    # Twice the longest wait, and what the rest takes on a busy machine.
    deadline = time.monotonic() + 2 * case.timeout + 60
    while children and time.monotonic() < deadline:
        child, _ = os.waitpid(-1, os.WNOHANG)
        if not child:
            if os.getppid() != PARENT:  # killed, and nobody ends what it has started
                os.killpg(0, signal.SIGKILL)
            time.sleep(0.02)
            continue
        rank = children.pop(child)
        path = place / f"rank{rank}.json"
        if not path.exists() or "raised" in json.loads(path.read_text(encoding="utf-8")):
            deadline = min(deadline, time.monotonic() + GRACE)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    paths = [place / f"rank{rank}.json" for rank in range(case.ranks)]
    return [
        json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"waiting": True} for path in paths
    ]


def _be(rank: int, case: Case, args: Any, place: Path, seed: int, actor_class: Any, port: int) -> None:
    """Be a rank of a case, and never return."""
    found: dict[str, Any] = {}
    try:
        torch.set_num_threads(1)
        rounded = case.rounded or case.memory is not None
        with contextlib.nullcontext() if rounded else exact_cross_entropy():
            found = _step(rank, case, args, seed, actor_class, port)
        found["met"] = [one.defect for one in overlay.status().met]
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what this case shows
        traceback.print_exc()
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        found = {"raised": text[:300], "at": time.time()}
    finally:
        fresh = place / f"rank{rank}.new"
        fresh.write_text(json.dumps(found), encoding="utf-8")
        fresh.rename(place / f"rank{rank}.json")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _step(rank: int, case: Case, args: Any, seed: int, actor_class: Any, port: int) -> dict[str, Any]:
    """Make the actor, let it take its step, and return what it found."""
    actor = actor_class(case.ranks, rank, "127.0.0.1", port)
    actor.init(args, case.role, with_ref=args.use_kl_loss)
    if case.publishes and not case.script:
        return {"published": published.error(actor, case.publishes), "micro_batches": None}
    data = case.draw(case, seed)
    handed = case.deal(args, actor.train_parallel_config, data)
    if case.script:
        errors = published.errors_of_rollouts(actor, SCRIPTS / case.script, handed)
        return {"published": max(errors), "rollouts": errors, "micro_batches": None}
    expected = None if case.memory is not None else case.expected(args, case.sizes, case.role, data)
    watched = Watched(actor, expected, data)
    budget = args.max_tokens_per_gpu * args.context_parallel_size
    with watched.step(memory=case.memory is not None):
        actor.train(0, handed)
    return {
        "micro_batches": watched.micro_batches if watched.speaks else None,
        "budget": budget,
        "peak": watched.peak,
        "advantages": watched.advantages,
        "gradient": watched.gradient,
    }


if __name__ == "__main__":
    main(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    quick_rank.leave()
