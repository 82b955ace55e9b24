"""What is replayed for a token are the experts that its rollout chose, on two ranks of each kind."""

import inspect
import random
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

from overlay.compat.contracts.forked import wrong_on_ranks
from overlay.compat.contracts.slime import BEFORE
from overlay.compat.slime_on_cpu import TRAINING, import_slime, stand_in
from overlay.patch import Contract
from overlay.testing import with_patches

_EXPERTS, _LAYERS, _CHOSEN = 64, 3, 2


def wrong(seed: str) -> str:
    """Return what is wrong with what a rank replays."""
    stand_in()
    return wrong_on_ranks(partial(_wrong, seed), f"{TRAINING}.actor", f"{TRAINING}.data")


def _wrong(seed: str) -> Iterator[str]:
    from megatron.core import parallel_state

    actor, _ = import_slime("actor", "data")
    for tensor, context in ((1, 2), (2, 1)):
        parallel_state.initialize_model_parallel(
            tensor, context_parallel_size=context, create_gloo_process_groups=False
        )
        for gathered in (True, False):
            for parallel in (False, tensor > 1):
                draw = random.Random(f"{seed} {tensor} {gathered}")
                args = Namespace(
                    num_experts=_EXPERTS, data_pad_size_multiplier=4, sequence_parallel=parallel,
                    allgather_cp=gathered, qkv_format="thd", seq_length=1,
                )  # fmt: skip
                if found := _replayed(actor, args, draw):
                    ranks = f"tp{tensor}, cp{context}, sequence parallel {parallel}"
                    yield f"{ranks}, allgather {gathered}: {found}"
        parallel_state.destroy_model_parallel()


def _route(token: int, layer: int, place: int) -> int:
    """Return the expert that the rollout chose for a token."""
    return (7 * token + 5 * layer + 11 * place) % _EXPERTS


def _replayed(actor: Any, args: Namespace, draw: random.Random) -> str:
    """Return the first token of a micro-batch that has another's experts."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.transformer import transformer_block, transformer_layer

    from overlay.compat.slime_on_cpu import import_slime

    data, replay = *import_slime("data"), _replays()
    # Each token is in no sample but one, and 0 is padding.
    lengths = [draw.randint(2, 19) for _ in range(5)]
    parts = list(
        torch.randperm(sum(lengths), generator=torch.Generator().manual_seed(draw.randrange(2**31)))
        .add(1)
        .split(lengths)
    )
    routes = [
        torch.tensor(
            [
                [[_route(int(token), layer, place) for place in range(_CHOSEN)] for layer in range(_LAYERS)]
                for token in part[:-1]
            ]
        ).view(-1, _LAYERS, _CHOSEN)
        for part in parts
    ]
    rollout: dict[str, Any] = {"tokens": parts, "rollout_routed_experts": routes}
    rollout |= {
        "total_lengths": lengths,
        "response_lengths": [1] * len(parts),
        "loss_masks": [torch.ones(1)] * len(parts),
    }
    iterator = data.DataIterator(rollout, micro_batch_indices=[[3, 0], [1], [4, 2]])
    config = SimpleNamespace(moe_layer_freq=1, num_layers=_LAYERS)
    own = SimpleNamespace(args=args, model=[SimpleNamespace(module=SimpleNamespace(config=config))])
    transformer_block.get_num_layers_to_build = lambda *_, **__: _LAYERS
    transformer_layer.get_transformer_layer_offset = lambda *_, **__: 0
    actor.MegatronTrainRayActor.fill_routing_replay(own, [iterator], [3], rollout)
    options = {"qkv_format": "thd", "allgather_cp": args.allgather_cp}
    options = {
        name: value for name, value in options.items() if name in inspect.signature(data.get_batch).parameters
    }
    ends = {int(part[-1]) for part in parts}  # nothing was generated after them
    for number in range(3):
        tokens = data.get_batch(
            iterator,
            ["tokens", "total_lengths", "response_lengths", "loss_masks"],
            args.data_pad_size_multiplier,
            **options,
        )["tokens"][0]
        if args.sequence_parallel:
            ranks = parallel_state.get_tensor_model_parallel_world_size()
            tokens = tokens.chunk(ranks)[parallel_state.get_tensor_model_parallel_rank()]
        for layer in range(_LAYERS):
            found = replay[layer].top_indices_list[number]
            if len(found) != len(tokens):
                return f"routes of {len(found)} rows for {len(tokens)} tokens"
            for token, experts in zip(tokens.tolist(), found.tolist(), strict=True):
                if (
                    token
                    and token not in ends
                    and experts != [_route(token, layer, place) for place in range(_CHOSEN)]
                ):
                    return f"token {token} in layer {layer} goes to experts {experts}"
    return ""


def _replays() -> Any:
    """Return the replay of each layer, with nothing in it."""
    from slime.utils.routing_replay import RoutingReplay

    RoutingReplay.all_routing_replays.clear()
    return [RoutingReplay() for _ in range(_LAYERS)]


CONTRACT = Contract(check=with_patches(wrong, "slime.allgather-cp-replay"), before=BEFORE)
