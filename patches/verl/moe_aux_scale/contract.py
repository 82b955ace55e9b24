"""With a loss per token, too, the gradient of a step of verl's Megatron engine is that of one process.

The engine's loop, what it makes of a loss, Megatron's schedule, its data parallelism and its router are
upstream's own. The model is a table, a router and its experts, which are rows.
"""

import functools
import os
from types import SimpleNamespace
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.rank_cases import Cases, RankCases, Row, within

#: Relative, of a gradient in float32.
TOLERANCE = 1e-5
VOCABULARY, HIDDEN, EXPERTS, CHOSEN = 12, 6, 4, 2
#: Of the router's losses. Large, so that the gradient shows them beside that of the main loss.
COEFFICIENT = 0.5
SEQUENCES = 4
#: Between the scores of the last expert that is chosen and the first that is not: no rounding goes over it.
MARGIN = 1e-3
#: Tokens of a micro-batch, the longest sequence having 11: as many micro-batches as can be, some, and one.
BUDGETS = (11, 20, 60)
KINDS = ("none", "z_loss", "aux_loss")


def cases(world: int) -> Cases:
    """Return the cases of data parallel ranks, and if there are two, one in which they share sequences."""
    found: Cases = [
        (
            f"{world} ranks, {kind}, {budget} tokens, {'per token' if per_token else 'per batch'}",
            {"context": 1},
            functools.partial(_step, kind, budget, per_token=per_token),
        )
        for per_token in (True, False)
        for kind in KINDS
        for budget in BUDGETS
    ]
    if world > 1:
        shared = functools.partial(_step, "none", 20)
        found.append((f"a sequence on {world} ranks, per token", {"context": world}, shared))
    return found


def _step(kind: str, budget: int, *, per_token: bool = True) -> Row:
    """Take a step, and return how far its gradient is from that of one process, relatively."""
    from overlay.compat.verl_imports import stand_in

    stand_in()
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state

    from overlay.testing import assert_applied

    draw = parts.generator()
    weights = _weights(draw)
    ranks = parallel_state.get_data_parallel_world_size()
    # A rank's sequences are longer than those of the rank before it. verl 0.9 rounds halves of tokens down.
    twice = parallel_state.get_context_parallel_world_size()
    tokens = [
        [torch.randint(VOCABULARY, (size * twice + 4 * rank,), generator=draw) for size in sizes.tolist()]
        for rank, sizes in enumerate(torch.randint(2, 8, (ranks, SEQUENCES), generator=draw))
    ]
    engine = _engine(weights, kind, per_token=per_token)
    engine.forward_backward_batch(_batch(tokens[parallel_state.get_data_parallel_rank()], budget), _loss)
    # How verl has cut the batch is its own matter.
    batches: list[Any] = [None] * ranks
    dist.all_gather_object(batches, engine.seen, group=parallel_state.get_data_parallel_group())
    if os.environ["OVERLAY_PATCHES"] != "none":
        assert_applied("verl.moe-aux-scale")
    want = _of_one_process(weights, batches, kind, per_token=per_token)
    found = dict(engine.module[0].module.named_parameters())
    got = torch.cat([found[name].main_grad.double().flatten() for name in want])
    right = torch.cat([value.flatten() for value in want.values()])
    return {"error": float((got - right).norm() / right.norm())}


def _weights(draw: Any) -> dict[str, Any]:
    """Return weights with which it is clear for each token which experts are chosen."""
    import torch

    drawn = functools.partial(torch.randn, generator=draw, dtype=torch.float32)
    table = drawn(VOCABULARY, HIDDEN)
    while True:
        router = drawn(EXPERTS, HIDDEN)
        best = (table @ router.T).sort(dim=-1, descending=True).values
        if float((best[:, CHOSEN - 1] - best[:, CHOSEN]).min()) > MARGIN:
            break
    experts, head = drawn(EXPERTS, HIDDEN), drawn(HIDDEN, VOCABULARY)
    return {"table": table, "router.weight": router, "experts": experts, "head": head}


def _batch(tokens: list[Any], budget: int) -> Any:
    """Return a rank's batch in verl's form."""
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    from overlay.compat.cpu_fsdp_engine import nested

    rows = {"input_ids": nested(tokens), "loss_mask": nested([torch.ones_like(row) for row in tokens])}
    batch = TensorDict(rows, batch_size=len(tokens))
    settings = {"use_dynamic_bsz": True, "max_token_len_per_gpu": budget, "global_batch_size": len(tokens)}
    tu.assign_non_tensor(batch, **settings)
    return batch


def _loss(model_output: Any, data: Any, dp_group: Any = None) -> Any:
    """Return what verl's losses are: a share of the mean over the batch, times the data parallel ranks."""
    return -model_output["log_probs"].values().sum() / data["batch_num_tokens"] * data["dp_size"], {}


def _of_one_process(
    weights: dict[str, Any], batches: list[list[Any]], kind: str, *, per_token: bool
) -> dict[str, Any]:
    """Return the gradient from plain arithmetic in float64, given the micro-batches of each rank.

    The main loss is the mean over all tokens. That of the router is the mean over ranks and their
    micro-batches, and with a loss per token each micro-batch counts by its tokens, so that a z-loss is the
    mean over all.
    """
    import torch

    exact = {name: value.double().requires_grad_() for name, value in weights.items()}
    everything = sum(len(batch) for own in batches for batch in own)
    loss: Any = torch.zeros((), dtype=torch.float64)
    for batch, others in ((batch, len(own)) for own in batches for batch in own):
        logits = exact["table"][batch] @ exact["router.weight"].T
        best, which = logits.topk(CHOSEN, dim=-1)
        shares = torch.zeros_like(logits).scatter(-1, which, best.softmax(dim=-1))
        loss = loss - _log_probs(exact, batch, shares).sum() / everything
        weight = len(batch) / everything if per_token else 1 / len(batches) / others
        if kind == "z_loss":
            loss = loss + weight * COEFFICIENT * logits.logsumexp(-1).square().mean()
        if kind == "aux_loss":
            share = (shares > 0).double().mean(dim=0) / CHOSEN
            loss = loss + weight * COEFFICIENT * EXPERTS * (share * logits.softmax(-1).mean(dim=0)).sum()
    loss.backward()
    return {name: value.grad for name, value in exact.items()}


def _log_probs(weights: Any, ids: Any, shares: Any) -> Any:
    """Return what the model says of each token, [tokens], given the share that each expert has in it."""
    hidden = weights["table"][ids] + shares @ weights["experts"]
    return (hidden @ weights["head"]).log_softmax(-1).gather(1, ids[:, None])[:, 0]


def _engine(weights: dict[str, Any], kind: str, *, per_token: bool) -> Any:
    """Return verl's engine around the model, without optimizer and checkpoints."""
    import torch
    from megatron.core import parallel_state
    from verl.workers.config import McoreEngineConfig
    from verl.workers.engine.megatron.transformer_impl import MegatronEngineWithLMHead

    class Engine(MegatronEngineWithLMHead):
        """Its step does without attention, kernels and what else there is no CPU version of."""

        def forward_step(self, batch_iter: Any, model: Any, **given: Any) -> Any:
            batch = next(batch_iter)
            ids = batch["input_ids"]
            self.seen.append(ids.values())
            said = torch.nested.nested_tensor_from_jagged(model(ids.values()), ids.offsets())
            return {"log_probs": said}, functools.partial(given["postprocess_micro_batch_func"], data=batch)

        def _routed_num_tokens(self, data: Any) -> Any:
            # verl 0.9 adds up over ranks in place what it has copied to its device. Here nothing is copied.
            return super()._routed_num_tokens(data).clone()

    context = parallel_state.get_context_parallel_world_size()
    model = _model(weights, kind, per_token=per_token, context=context)
    engine = Engine.__new__(Engine)
    engine.tf_config = model.config
    engine.module = [parts.data_parallel(model)]
    engine.model_config = SimpleNamespace(mtp=SimpleNamespace(enable=False))
    engine.engine_config = McoreEngineConfig(context_parallel_size=context)
    engine.mini_layer_topk_idx_list = []
    engine.seen = []
    return engine


def _model(weights: dict[str, Any], kind: str, *, per_token: bool, context: int) -> Any:
    """Return the model."""
    import torch
    from megatron.core import parallel_state

    config = parts.small_transformer(
        hidden_size=HIDDEN,
        num_moe_experts=EXPERTS,
        moe_router_topk=CHOSEN,
        moe_router_load_balancing_type="aux_loss" if kind == "aux_loss" else "none",
        moe_aux_loss_coeff=COEFFICIENT if kind == "aux_loss" else 0.0,
        moe_z_loss_coeff=COEFFICIENT if kind == "z_loss" else None,
        moe_token_dispatcher_type="alltoall",  # noqa: S106 -- no password
        context_parallel_size=context,
        calculate_per_token_loss=per_token,
        add_bias_linear=False,
    )

    def forward(own: Any, ids: Any) -> Any:
        """Return what it says of each token, with the gradient of those that are this rank's part."""
        shares = own.router(own.table[ids][:, None])[0]
        said = _log_probs(dict(own.named_parameters()), ids, shares.view(len(ids), EXPERTS))
        part = torch.arange(len(ids)) % context == parallel_state.get_context_parallel_rank()
        return torch.where(part, said, said.detach())

    model = parts.chunk(config, forward)
    model.router = parts.router(config)
    for name in ("table", "experts", "head"):
        setattr(model, name, torch.nn.Parameter(weights[name].clone()))
    with torch.no_grad():
        model.router.weight.copy_(weights["router.weight"])
    return model


CASES = RankCases("verl.moe-aux-scale", "the gradient is not that of one process", within(TOLERANCE))
CONTRACT = CASES.contract()
