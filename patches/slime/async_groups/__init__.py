"""`slime.async-groups`: fully asynchronous rollouts train on every group that was generated."""

from contextlib import suppress
from functools import wraps
from queue import Empty
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import Figure, effect
from overlay.patch import Patch, around, one_target, replaced, variant
from overlay.patches._rebound import rebound

_MODULE = "slime.rollout.fully_async_rollout"
_WORKER = f"{_MODULE}:AsyncRolloutWorker"
EFFECT = effect(
    __name__,
    "rollout",
    Figure(name="kept", says="groups that waited when a rollout had all that it wanted"),
    Figure(name="most", says="of them, the most at once", combine="max"),
    did="kept groups after",
    then="{kept} groups went on to the next, at most {most} at once",
)


class _Prompts:
    """The buffer of prompts, which gives the worker none while as many groups wait as it makes at once."""

    def __init__(self, worker: Any) -> None:
        self._worker, self._own = worker, worker.data_buffer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def get_samples(self, number: int) -> Any:
        worker = self._worker
        return [] if worker.queue_size() >= worker.concurrency else self._own.get_samples(number)


class _Wanted:
    """The worker as one rollout sees it: it hands out as many groups as the rollout still needs."""

    def __init__(self, worker: Any, target: int) -> None:
        self._worker, self._left = worker, target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def get_completed_groups(self) -> list[Any]:
        groups: list[Any] = []
        with suppress(Empty):
            while len(groups) < self._left:
                groups.append(self._worker.output_queue.get_nowait())
        self._left -= len(groups)
        return groups


@around
def init(original: Any, self: Any, *given: Any, **named: Any) -> None:
    """Make a worker whose queue has no bound, at which its thread would wait."""
    original(self, *given, **named)
    self.output_queue.maxsize = 0
    self.data_buffer = _Prompts(self)


def make_rollout(original: Any, module: Any) -> Any:
    """Build one rollout: slime's own, with a worker that hands out no more groups than it needs."""

    async def _generate_rollout_async(args: Any, *given: Any, **named: Any) -> Any:
        workers: list[Any] = []

        def worker(*asked: Any) -> _Wanted:
            found = module._get_global_worker(*asked)  # noqa: SLF001 -- by which slime finds it
            workers.append(found)
            return _Wanted(found, args.rollout_batch_size)

        result = await rebound(original, module, _get_global_worker=worker)(args, *given, **named)
        waiting = workers[-1].output_queue.qsize() if workers else 0
        EFFECT.calls += 1
        EFFECT.changed += waiting > 0
        EFFECT.kept += waiting
        EFFECT.most = max(EFFECT.most, waiting)
        return result

    return wraps(original)(_generate_rollout_async)


PATCH = Patch(
    id="slime.async-groups",
    summary="Fully asynchronous rollouts train on every group that was generated",
    why="A fully asynchronous rollout of slime 0.3 throws away finished groups beyond --rollout-batch-size, "
    "those of late prompts first, and counts their prompts as used. With the patch they wait for the next "
    "rollout, and the worker takes no new prompts while as many groups wait as it generates at once. Groups "
    "get older: where generation is the faster, up to 2 C / B updates for C groups at once and B in a "
    "rollout, instead of one. By default old log-probabilities are recomputed, so nothing corrects for it.",
    changes=("numbers", "speed"),
    opt_in=True,
    met="--rollout-function-path slime.rollout.fully_async_rollout.generate_rollout_fully_async.",
    upstream=("THUDM/slime#2238",),
    evidence="It trades age for waste: unpatched slime trains on groups that are one update old and throws "
    "the rest away. The queue is that of slime's commit 7e02052 (after 0.3.1).",
    targets=one_target(
        SLIME,
        variant(
            "0.3",
            replaced(f"{_MODULE}:_generate_rollout_async", make_rollout),
            replaced(f"{_WORKER}.__init__", init),
            # It asks for prompts one by one, and goes on where there are none.
            f"{_WORKER}._loop",
        ),
        tells=(_MODULE,),
    ),
)
