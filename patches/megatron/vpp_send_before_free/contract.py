"""An activation that is being sent keeps its memory until the send has been waited for, and no longer."""

import functools
import gc
import os
from collections.abc import Callable
from typing import Any, ClassVar

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.rank_cases import Cases, RankCases, Row

#: Activations on their way at a time: the schedule waits for one when it has sent the next.
AT_A_TIME = 2
#: Tokens of a sequence, sequences of a micro-batch, hidden size, micro-batches.
TOKENS, SEQUENCES, HIDDEN, BATCHES = 5, 1, 4, 6
#: Two ways in which the schedule sends without waiting, and one in which it waits.
WAYS: dict[str, dict[str, Any]] = {
    "overlapped": {"overlap_p2p_comm": True},
    "overlapped from the start": {
        "overlap_p2p_comm": True,
        "overlap_p2p_comm_warmup_flush": True,
        "microbatch_group_size_per_vp_stage": 3,
    },
    "waited for": {"overlap_p2p_comm": False},
}


def cases(_world: int) -> Cases:
    """Return a case for each way to send, of training and of a forward pass alone."""
    return [
        (
            f"{name}, {'forward' if forward_only else 'training'}",
            {"pipeline": 2, "virtual": 2},
            functools.partial(_step, settings, forward_only=forward_only),
        )
        for name, settings in WAYS.items()
        for forward_only in (False, True)
    ]


class Witness:
    """Stands in for what torch returns of a send, and holds, as that does, the tensor it was given.

    What is really sent is a copy, at once, so that no run depends on when the other rank is ready.
    """

    #: Activations whose send has neither been waited for nor dropped, and the most of them at a time.
    going: int = 0
    most: int = 0
    #: Activations that had lost their memory before the schedule waited.
    emptied: int = 0
    #: What is really sent, by its handle, and has not been waited for.
    works: ClassVar[dict[Any, Any]] = {}

    def __init__(self, tensor: Any, send: Callable[[Any], Any], *, activation: bool) -> None:
        self.tensor = tensor
        self.copy = tensor.detach().clone()
        self.work = send(self.copy)
        self.counted = activation
        Witness.works[self.work] = self.copy
        Witness.going += activation
        Witness.most = max(Witness.most, Witness.going)

    def wait(self) -> None:
        """Look at the tensor, which is to be as it was until now, and let go of it."""
        import torch

        Witness.emptied += self.counted and not torch.equal(self.tensor.detach(), self.copy)
        self._let_go()
        if Witness.works.pop(self.work, None) is not None:  # gloo waits for ever the second time
            self.work.wait()

    def __del__(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        self.tensor = None
        Witness.going -= self.counted
        self.counted = False


def _step(settings: dict[str, Any], *, forward_only: bool) -> Row:
    """Take a step, and return how many activations lost their memory, and how many were held at a time."""
    import torch
    from megatron.core.pipeline_parallel import p2p_communication

    from overlay.compat.cuda_on_cpu import replaced

    torch.manual_seed(int(os.environ["OVERLAY_TEST_SEED"]) % 2**31)
    chunks = _chunks(settings)
    draw = torch.randn(BATCHES, TOKENS, SEQUENCES, HIDDEN)

    def forward_step(data: Any, chunk: Any, *_: Any) -> Any:
        return chunk(next(data)), lambda out: (out.sum(), {})

    send = torch.distributed.isend
    activations: set[int] = set()
    exchange = vars(p2p_communication)["_p2p_ops"]

    def noted(**tensors: Any) -> Any:
        activations.clear()
        if tensors["tensor_send_next"] is not None:
            activations.add(tensors["tensor_send_next"].data_ptr())
        return exchange(**tensors)

    def isend(tensor: Any, **where: Any) -> Any:
        # Nobody empties a gradient.
        activation = tensor.data_ptr() in activations
        return Witness(tensor, lambda copy: send(tensor=copy, **where), activation=activation)

    Witness.going = Witness.most = Witness.emptied = 0
    with replaced(torch.distributed, "isend", isend), replaced(p2p_communication, "_p2p_ops", noted):
        parts.run_schedule(
            chunks, forward_step, [iter(draw), iter(draw)], batches=BATCHES, tokens=TOKENS,
            sequences=SEQUENCES, forward_only=forward_only,
        )  # fmt: skip
    gc.collect()
    while Witness.works:  # gloo takes a send back whose handle is dropped
        Witness.works.popitem()[0].wait()
    return {"emptied": Witness.emptied, "most": Witness.most, "left": Witness.going}


def _chunks(settings: dict[str, Any]) -> list[Any]:
    """Return this stage's two chunks of a model, each a linear layer."""
    import torch

    config = parts.small_transformer(
        num_layers=4, hidden_size=HIDDEN, num_attention_heads=1, pipeline_model_parallel_size=2,
        virtual_pipeline_model_parallel_size=2, pipeline_dtype=torch.float32,
        deallocate_pipeline_outputs=True, batch_p2p_comm=False, **settings,
    )  # fmt: skip

    def forward(own: Any, tokens: Any) -> Any:
        entry = tokens if own.entry is None else own.entry
        return entry + own.layer(entry)  # no view, which the schedule would not empty

    chunks = [parts.chunk(config, forward) for _ in range(2)]
    for stage, one in enumerate(chunks):
        one.layer, one.vp_stage = torch.nn.Linear(HIDDEN, HIDDEN), stage
    return chunks


def _off(row: Row) -> list[str]:
    """Tell whether an activation was emptied while it was sent, or held for longer than that."""
    return [""] if row["emptied"] or row["left"] or row["most"] > AT_A_TIME else []


CASES = RankCases(
    "megatron.vpp-send-before-free", "an activation is not held as long as it is being sent", _off
)
wrong = CASES.wrong

CONTRACT = CASES.contract()
