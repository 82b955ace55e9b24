"""Started by torchrun in the worksite: ranks that agree, twice, and then refuse a patch."""

from __future__ import annotations

import os
import sys

import torch.distributed as dist


def main() -> None:
    rank = os.environ["RANK"]
    sys.stderr = open(os.path.join(sys.argv[1], f"rank{rank}.txt"), "w")  # noqa: PTH118, PTH123, SIM115 -- until the end
    import fakeup.core

    import overlay
    from overlay.runtime.process import here

    dist.init_process_group("gloo")
    sys.stdout.write(f"\nrank {rank}: {fakeup.core.scale(1)}\n")
    overlay.agree()
    # Under torchrun it had one thread when it imported the first module.
    assert here().job_log._watches
    sys.stderr.write("-- again\n")
    overlay.agree()
    overlay.disable()
    # Somebody else's version from now on, which the patch does not know.
    folder = os.path.join(sys.argv[1], f"other{rank}", "fakeup")  # noqa: PTH118
    os.makedirs(folder)  # noqa: PTH103
    for name, text in (("__init__.py", ""), ("version.txt", "1.2.0"), ("core.py", "def scale(value): 0\n")):
        with open(os.path.join(folder, name), "w") as file:  # noqa: PTH118, PTH123
            file.write(text)
    sys.path.insert(0, os.path.dirname(folder))  # noqa: PTH120
    for name in [name for name in sys.modules if name.partition(".")[0] == "fakeup"]:
        del sys.modules[name]
    overlay.enable()
    import fakeup.core as other

    assert other.scale(1) is None
    overlay.agree()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
