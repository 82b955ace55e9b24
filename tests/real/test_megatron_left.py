"""What Megatron does wrong that no patch mends, by its own code on a CPU."""

from __future__ import annotations

import pytest
from checks import SEED
from listed_sources import Said

pytestmark = pytest.mark.real


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
    return {"type": str(total.dtype), "off": float((total.double() - 257.5).abs().max())}

print(json.dumps(found(sys.argv[1])))
"""


@pytest.mark.parametrize(("name", "error"), [("megatron-core==0.16.1", 0.5), ("megatron-core==0.17.1", 0.0)])
def test_a_residual_in_float32_is_rounded_before_0_17(error: float, said: Said) -> None:
    found = said(RESIDUAL)
    assert found["off"] >= error
    assert (found["type"] == "torch.float32") is not bool(error)


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


@pytest.mark.parametrize("name", ["megatron-core==0.19.0"])
def test_the_tokens_to_predict_further_are_sent_among_other_messages(said: Said) -> None:
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


@pytest.mark.parametrize(
    "name", [f"megatron-core==0.{version}" for version in ("16.1", "17.1", "18.2", "19.2")]
)
def test_the_layer_wise_optimizer_steps_like_adam_in_one_process(name: str, said: Said) -> None:
    """No release has the gradients on top of gathered weights that NVIDIA/Megatron-LM#4609 mends."""
    found = dict(one.split(":") for one in said(LAYER_WISE)["said"].split("; "))
    assert set(found) == ({"False"} if name.endswith("0.16.1") else {"False", "True"})
    assert all(float(error) < 1e-4 for error in found.values()), SEED
