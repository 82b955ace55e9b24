"""Programs that start others."""

from __future__ import annotations

#: Programs that start the command in their arguments, in the same environment and on the same machine.
STARTERS = (
    "chrt", "env", "flock", "gdb", "ionice", "nice", "nohup", "nsys", "numactl", "perf", "prlimit", "setsid",
    "stdbuf", "strace", "taskset", "time", "timeout", "unshare", "xargs",
)  # fmt: skip
