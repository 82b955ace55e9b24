"""`slime.async-groups`: fully asynchronous rollouts train on every group that was generated, on old ones too.

A rollout empties the queue of groups that are done and keeps as many as it needs. It runs as it is, with a
worker that hands out no more than that. What is left stays in the queue, which must not stop the thread that
generates, so it loses its bound; and the worker gets no prompts while enough groups wait.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import Figure, effect
from overlay.patch import Patch, one_target, replaced, variant

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
        from queue import Empty

        groups: list[Any] = []
        while self._left:
            try:
                groups.append(self._worker.output_queue.get_nowait())
            except Empty:
                break
            self._left -= 1
        return groups


def make_init(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the constructor of the worker.

    Its queue has no bound: the thread that generates would wait at one, and with it all that it generates.
    """

    def __init__(self: Any, args: Any, data_buffer: Any, concurrency: int = 10) -> None:  # noqa: N807 -- its name
        original(self, args, data_buffer, concurrency)
        self.output_queue.maxsize = 0
        self.data_buffer = _Prompts(self)

    return __init__


def make_rollout(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build one rollout: slime's own, with a worker that hands out no more groups than it needs."""
    from overlay.patches._rebound import rebound

    async def _generate_rollout_async(args: Any, rollout_id: int, data_buffer: Any) -> Any:
        workers: list[Any] = []

        def worker(*given: Any) -> _Wanted:
            found = module._get_global_worker(*given)  # noqa: SLF001 -- by which slime finds it
            workers.append(found)
            return _Wanted(found, args.rollout_batch_size)

        own = rebound(original, module, _get_global_worker=worker)
        result = await own(args, rollout_id, data_buffer)
        waiting = workers[-1].output_queue.qsize() if workers else 0
        EFFECT.calls += 1
        EFFECT.changed += waiting > 0
        EFFECT.kept += waiting
        EFFECT.most = max(EFFECT.most, waiting)
        return result

    return _generate_rollout_async


PATCH = Patch(
    id="slime.async-groups",
    summary="Fully asynchronous rollouts train on every group that was generated",
    why=(
        "A fully asynchronous rollout of slime 0.3 takes all groups that are done out of the queue and "
        "throws away those beyond --rollout-batch-size, by their index: generated, scored, and their prompts "
        "used up. Prompts that come late in the data are lost most. With the patch they wait, and are "
        "trained on, those that were done first. The worker takes no new prompts while as many groups wait "
        "as it generates at once, as in slime after 0.3.1. That makes groups older: where generation is "
        "faster than training, up to 2 C / B updates old, for C groups at once and B in a rollout, where "
        "those of slime alone are one update old. Old log-probabilities are recomputed by default, so "
        "nothing corrects for it."
    ),
    changes=("numbers", "speed"),
    opt_in=True,
    met="--rollout-function-path slime.rollout.fully_async_rollout.generate_rollout_fully_async.",
    upstream=("THUDM/slime#2238",),
    evidence=(
        "It trades age for waste: slime alone trains on groups that are one update old and throws the rest "
        "away. The queue is that of slime's commit 7e02052 (#2238, after 0.3.1)."
    ),
    targets=one_target(
        SLIME,
        variant(
            "0.3",
            replaced(f"{_MODULE}:_generate_rollout_async", make_rollout),
            replaced(f"{_WORKER}.__init__", make_init),
            # That it asks for prompts one by one, and goes on where there are none.
            f"{_WORKER}._loop",
        ),
        tells=(_MODULE,),
    ),
)
