"""`slime.allgather-cp-replay`: with --allgather-cp each token is routed to the experts of its own rollout."""

from functools import wraps
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches._rebound import rebound

_FILL = "slime.backends.megatron_utils.actor:MegatronTrainRayActor.fill_routing_replay"
EFFECT = effect(__name__, "micro-batch", did="realigned the routes of", always=True)


class _Counting:
    """An iterator of micro-batches that knows how many samples the last one has."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self.samples = 0

    def get_next(self, keys: Any) -> Any:
        batch = self._iterator.get_next(keys)
        self.samples = len(batch["tokens"])
        return batch

    def reset(self) -> Any:
        return self._iterator.reset()


def make_fill(original: Any, module: Any) -> Any:
    """Cut the routes as slime cuts the tokens: a micro-batch into one run of rows for each rank."""
    import torch

    @wraps(original)
    def fill_routing_replay(self: Any, data_iterator: Any, *given: Any, **named: Any) -> None:
        mpu = module.mpu
        ranks = mpu.get_context_parallel_world_size()
        if not self.args.allgather_cp or ranks == 1:
            original(self, data_iterator, *given, **named)
            return
        iterators = [_Counting(iterator) for iterator in data_iterator]
        row = ranks * mpu.get_tensor_model_parallel_world_size() * self.args.data_pad_size_multiplier
        whole: list[Any] = []

        def own_rows(routes: Any, pad: Any) -> Any:
            """Return nothing of a sample of a micro-batch but the last, and then this rank's rows of all."""
            whole.append(routes)
            if len(whole) < iterators[0].samples:
                return routes[:0]
            joined = torch.cat(whole)
            whole.clear()
            EFFECT.changed += 1
            lacking = -len(joined) % row
            joined = pad(joined, lacking) if lacking else joined
            return joined.chunk(ranks)[mpu.get_context_parallel_rank()]

        rebound(original, module, slice_with_cp=own_rows)(self, iterators, *given, **named)

    return fill_routing_replay


PATCH = Patch(
    id="slime.allgather-cp-replay",
    summary="With --allgather-cp, routing replay gives each token the experts of its own rollout",
    why="With --allgather-cp each context parallel rank has one run of a micro-batch's tokens. slime 0.2.3 "
    "to 0.3.0 cuts the routes that it replays as for other attention, in two chunks of each sample. So "
    "tokens go to experts that were chosen for others, in the forward and in the backward pass, or lengths "
    "don't fit. With the patch routes are cut as tokens are.",
    changes=("numbers", "crashes"),
    met="--allgather-cp with --use-rollout-routing-replay and a context parallel size above 1.",
    upstream=("THUDM/slime#2175",),
    evidence="Each route is that of the token in its row; slime 0.3.1 cuts them in the same way.",
    targets=one_target(
        SLIME,
        variant(
            "0.2.3",
            replaced(_FILL, make_fill),
            "slime.backends.megatron_utils.data:get_batch",
        ),
    ),
)
