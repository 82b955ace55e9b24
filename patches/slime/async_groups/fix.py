"""What keeps the groups that a rollout does not need for the next, and makes no more than may wait."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


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
    from overlay.patches.slime.async_groups.effect import EFFECT

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
