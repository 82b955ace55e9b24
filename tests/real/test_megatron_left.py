"""What Megatron does wrong that no patch mends, by its own code on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checks import SEED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.real


@pytest.fixture
def said(
    version: str, listed: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> Callable[[str], dict[str, Any]]:
    """Return the function that runs a program on the release and returns what it printed."""
    return lambda text: findings(listed(f"megatron-core=={version}"), text, SEED)


PACKED = """
import json, sys
from overlay.compat.contracts import megatron_parts as parts
import torch

TOKENS, PACKED, EXPERTS, TOPK = 6, 3, 4, 2

def gradient(weight, sequences):
    own = weight.detach().double().requires_grad_()
    losses = []
    for one in sequences:
        probs = torch.softmax(one.double() @ own.T, dim=-1)
        counts = torch.zeros_like(probs).scatter(1, probs.topk(TOPK).indices, 1.0).mean(0) / TOPK
        losses.append(EXPERTS * (probs.mean(0) * counts).sum())
    torch.stack(losses).mean().backward()
    return own.grad

@parts.on_one_rank
def found(seed):
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
    MoEAuxLossAutoScaler.set_loss_scale(torch.ones(1))
    config = parts.small_transformer(
        num_moe_experts=EXPERTS, moe_router_topk=TOPK, moe_aux_loss_coeff=1.0, add_bias_linear=False,
        moe_router_load_balancing_type="seq_aux_loss",
    )
    router = parts.router(config)
    router.weight.data.normal_()
    states = torch.randn(PACKED, TOKENS, config.hidden_size)
    errors = []
    for given in (states.reshape(-1, 1, config.hidden_size), states.transpose(0, 1).contiguous()):
        router.weight.grad = None
        (0 * router(given)[0].sum()).backward()
        for right in (states, states.reshape(1, -1, config.hidden_size)):
            errors.append(parts.relative_error(router.weight.grad, gradient(router.weight, right)))
    return errors

names = ("packed, each", "packed, pack", "batch, each", "batch, pack")
print(json.dumps(dict(zip(names, found(sys.argv[1])))))
"""


@pytest.mark.parametrize("version", ["0.19.2"])
def test_seq_aux_loss_balances_a_pack_as_one_sequence(said: Callable[[str], dict[str, Any]]) -> None:
    found = said(PACKED)
    assert found["packed, pack"] < 1e-4, SEED
    assert found["packed, each"] > 1e-2, SEED
    assert found["batch, each"] < 1e-4, SEED


RESIDUAL = """
import json, sys
from overlay.compat.contracts import megatron_parts as parts
import torch

@parts.on_one_rank
def found(seed):
    from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
    # One that bfloat16 rounds away.
    residual, output = torch.full((4, 1, 8), 256.5), torch.ones(4, 1, 8, dtype=torch.bfloat16)
    total = get_bias_dropout_add(True, False)((output, None), residual, 0.0)
    return {"type": str(total.dtype), "error": float((total.double() - 257.5).abs().max())}

print(json.dumps(found(sys.argv[1])))
"""


@pytest.mark.parametrize(("version", "error"), [("0.16.1", 0.5), ("0.17.1", 0.0)])
def test_a_residual_in_float32_is_rounded_before_0_17(
    error: float, said: Callable[[str], dict[str, Any]]
) -> None:
    found = said(RESIDUAL)
    assert found["error"] >= error
    assert (found["type"] == "torch.float32") is not bool(error)


FLOAT32 = """
import json, sys
from overlay.compat.contracts import megatron_parts as parts, offloaded
import torch

@parts.on_one_rank
def found(seed):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.config = parts.small_transformer()
            self.weight = torch.nn.Parameter(torch.randn(5, 4))
    said = {}
    for offloaded_too in (True, False):
        model = parts.data_parallel(Model(), use_distributed_optimizer=True)
        more = {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0} if offloaded_too else {}
        try:
            with offloaded.two_memories():
                parts.optimizer(
                    model, lr=0.1, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True,
                    **({"use_precision_aware_optimizer": True, **more} if more else {}),
                )
            said[str(offloaded_too)] = ""
        except ValueError as error:
            said[str(offloaded_too)] = str(error)
    return said

print(json.dumps(found(sys.argv[1])))
"""


@pytest.mark.parametrize("version", ["0.19.2"])
def test_an_offloaded_optimizer_refuses_weights_in_float32(said: Callable[[str], dict[str, Any]]) -> None:
    found = said(FLOAT32)
    assert "can't optimize a non-leaf Tensor" in found["True"]
    assert found["False"] == ""


ROLLED = """
import json
from overlay.compat.contracts.forked import wrong_on_ranks

def look():
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.transformer.multi_token_prediction import roll_tensor
    from overlay.compat import megatron_on_cpu
    megatron_on_cpu.start_megatron(context_parallel_size=2)
    group, rank = parallel_state.get_context_parallel_group(), dist.get_rank()
    part = torch.arange(8.0)[None] + 100 * rank
    right, _ = roll_tensor(part.clone(), cp_group=group)
    # Somebody else's message between the two, which has been sent and not been received.
    other = torch.full((1,), -1.0)
    sent = dist.isend(other, dst=0) if rank else None
    found, _ = roll_tensor(part.clone(), cp_group=group)
    if rank:
        sent.wait()
    else:
        dist.recv(other, src=1)
        yield json.dumps({"right": right.tolist(), "found": found.tolist(), "other": other.tolist()})

if __name__ == "__main__":
    print(wrong_on_ranks(look, "megatron.core.transformer.multi_token_prediction"))
"""


@pytest.mark.parametrize("version", ["0.19.0"])
def test_the_tokens_to_predict_further_are_sent_among_other_messages(
    said: Callable[[str], dict[str, Any]],
) -> None:
    """They are received in the order of all messages between two ranks, so each may wait for another."""
    found = said(ROLLED)
    assert -1.0 not in found["right"][0]
    assert -1.0 in found["found"][0]
    assert found["other"] != [-1.0]


LAYER_WISE = """
import json, sys
from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.forked import wrong_on_ranks

# gloo gathers nothing but equal parts, so that each rank has two of four weights.
STEPS, RANKS, SIZE, LAYERS = 4, 2, 6, 4

def look():
    import torch
    import torch.distributed as dist
    from torch.nn import Linear, Sequential
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.optimizer.layer_wise_optimizer import LayerWiseDistributedOptimizer
    from megatron.core.optimizer.optimizer import FP32Optimizer
    from megatron.core.process_groups_config import ProcessGroupCollection
    from overlay.compat import megatron_on_cpu

    megatron_on_cpu.start_megatron()
    torch.manual_seed(int(sys.argv[1]) % 2**31)
    data = torch.randn(STEPS + 1, RANKS, 7, SIZE)
    for overlapped in (False, True):
        model, alone = (Sequential(*(Linear(SIZE, SIZE, bias=False) for _ in range(LAYERS))) for _ in "ab")
        alone.double()
        alone.load_state_dict(model.state_dict())
        model.config = parts.small_transformer()
        overlaps = {"overlap_grad_reduce": True, "overlap_param_gather": True} if overlapped else {}
        chunk = parts.data_parallel(model, **overlaps)
        settings = OptimizerConfig(optimizer="adam", lr=0.05, clip_grad=0.0, overlap_param_gather=overlapped)
        adam = torch.optim.Adam([{"params": list(model.parameters())}], lr=0.05)
        given = {"pg_collection": ProcessGroupCollection.use_mpu_process_groups()}
        if parts.knows(LayerWiseDistributedOptimizer.__init__, "model_chunks"):
            given["model_chunks"] = [chunk]
        if parts.knows(LayerWiseDistributedOptimizer.__init__, "async_allgather"):
            given["async_allgather"] = overlapped
        if overlapped and "model_chunks" not in given:
            continue  # it is not to be had
        part = FP32Optimizer(adam, settings, lambda *_: None)
        ours = LayerWiseDistributedOptimizer([part], settings, **given)
        theirs = torch.optim.Adam(alone.parameters(), lr=0.05)
        for step in range(STEPS):
            chunk.zero_grad_buffer()
            ours.zero_grad()
            chunk(data[step, dist.get_rank()]).square().mean().backward()
            chunk.finish_grad_sync()
            ours.step()
            theirs.zero_grad()
            alone(data[step].double().flatten(0, 1)).square().mean().backward()
            theirs.step()
        off = (chunk(data[STEPS, 0]).double() - alone(data[STEPS, 0].double())).abs().max()
        yield f"{overlapped}:{float(off)}"

if __name__ == "__main__":
    found = wrong_on_ranks(look, "megatron.core.optimizer", "megatron.core.distributed")
    print(json.dumps({"said": found}))
"""


@pytest.mark.parametrize("version", ["0.16.1", "0.17.1", "0.18.2", "0.19.2"])
def test_the_layer_wise_optimizer_steps_like_adam_in_one_process(
    version: str, said: Callable[[str], dict[str, Any]]
) -> None:
    """No release has the gradients on top of gathered weights that NVIDIA/Megatron-LM#4609 mends."""
    found = dict(one.split(":") for one in said(LAYER_WISE)["said"].split("; "))
    assert set(found) == ({"False"} if version == "0.16.1" else {"False", "True"})
    assert all(float(error) < 1e-4 for error in found.values()), SEED
