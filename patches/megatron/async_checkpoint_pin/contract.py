"""What a checkpoint has staged lives as long as the process that writes it, and no longer."""

import gc
import os
import weakref

from overlay.compat.contracts import megatron_parts as parts


@parts.on_one_rank
def wrong(_seed: str) -> str:
    """Return what became of staged tensors while they are written, and afterwards; empty if all is well."""
    import torch
    from megatron.core.dist_checkpointing.strategies import async_utils

    drawn, owners = torch.randn(5, 3), list[weakref.ref[torch.Tensor]]()
    go_on, told = os.pipe()

    def stage() -> list[torch.Tensor]:
        copy = drawn.clone()
        owners.append(weakref.ref(copy))
        return [copy]

    def write(_plan: object, staged: list[torch.Tensor], sign: float) -> None:
        os.read(go_on, 1)  # as if the disk were slow
        if not torch.equal(staged[0], drawn) or sign != float(drawn[0, 0]):
            os._exit(3)

    queue, finished = async_utils.AsyncCallsQueue(), list[int]()
    arguments, done_with = ("plan", None, float(drawn[0, 0])), [lambda *_: finished.append(1)]
    first = queue.schedule_async_request(
        async_utils.AsyncRequest(write, arguments, done_with, preload_fn=stage)
    )
    process = queue.async_calls[-1].async_caller.process
    gc.collect()
    held = owners[0]() is not None
    os.write(told, b".")
    done = queue.maybe_finalize_async_calls(blocking=True)
    if process.exitcode or done != [first] or not finished:
        return "the checkpoint was not written as it was staged"
    if not held:
        return "nothing holds what was staged while it is being written"
    # multiprocessing has forgotten the process: it was joined.
    del process
    gc.collect()
    if owners[0]() is not None:
        return "what was staged is held after it was written"
    # A request that stages nothing goes as it is.
    second = queue.schedule_async_request(async_utils.AsyncRequest(lambda *_: None, ("plan",), []))
    all_done = queue.maybe_finalize_async_calls(blocking=True) == [second]
    return "" if all_done else "a request without staging is not finished"


CONTRACT = parts.contract("megatron.async-checkpoint-pin", wrong)
