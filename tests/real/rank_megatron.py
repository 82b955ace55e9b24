"""Started on every rank: initialises Megatron's model parallel state where ranks are alike, and where not.

Argument: `alone` to do it without overlay's agreement. Prints what was raised each time as JSON.
"""

from __future__ import annotations

import overlay

overlay.enable()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402

import torch.distributed as dist  # noqa: E402

from overlay.compat.no_triton import no_triton  # noqa: E402

with no_triton():  # which 0.19 imports
    from megatron.core import parallel_state


def initialised() -> str:
    """Initialise, and return the error or nothing."""
    try:
        parallel_state.initialize_model_parallel()
    except Exception as error:  # noqa: BLE001 -- the test judges it
        return f"{type(error).__name__}: {error}"
    finally:
        parallel_state.destroy_model_parallel()
        dist.barrier()
    return ""


def main() -> None:
    dist.init_process_group("gloo")
    found = {"alike": initialised()}
    if os.environ["RANK"] == "1":
        overlay.disable()
        overlay.enable("none" if "alone" in sys.argv else "-megatron.recompute")
    dist.barrier()
    found["different"] = initialised()
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
