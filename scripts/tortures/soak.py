"""10,000 times enable() and disable(), 100,000 calls: no growth in memory, no slowdown.

See `soak_cycles.py` for what is done each time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from forked import in_a_child
from order_world import write_upstream
from soak_cycles import MOST_BLOCKS, MOST_RESIDENT, MOST_TIME, SOAKS, grown


def main(arguments: list[str]) -> int:
    """Do each of it as often as it says, and print what grew."""
    parser = argparse.ArgumentParser(description=__doc__, prog="scripts/torture soak")
    parser.add_argument("--part", type=float, default=1.0, help="of the usual number of times (default: 1)")
    given = parser.parse_args(arguments)
    os.environ["OVERLAY_LOG"] = "off"
    sys.dont_write_bytecode = True
    failed = False
    print(f"{'':30}{'times':>9}{'us each':>10}{'last/first':>12}{'blocks each':>13}{'RSS, KiB':>10}")
    with tempfile.TemporaryDirectory() as folder:
        patch = write_upstream(Path(folder))
        sys.path.insert(0, folder)
        for name, (soak, count) in SOAKS.items():
            found = in_a_child(lambda: soak(patch, max(int(count * given.part), 100)), seconds=7200)  # noqa: B023
            more = ["failed: " + found["wrong"][0]] if "wrong" in found else grown(found)
            failed |= bool(more)
            if "wrong" not in found:
                print(
                    f"{name:30}{found['count']:9,.0f}{found['microseconds']:10.1f}{found['time']:12.2f}"
                    f"{found['blocks']:13.3f}{found['resident'] / 1024:10.0f}",
                    flush=True,
                )
            print("".join(f"  {what}\n" for what in more), end="")
    print(
        "\nlast/first: processor time, the last three tenths by the second to the fourth "
        f"(at most {MOST_TIME:g}).\nblocks each: of memory, kept each time in the second half "
        f"(at most {MOST_BLOCKS:g}).\nRSS: by which the process grew after the second tenth "
        f"(at most {MOST_RESIDENT >> 20} MiB)."
    )
    return 1 if failed else 0
