"""Run shell scripts of an upstream in namespaces of their own, and write down the programs that they start.

A script sees a copy of its tree, the stand-ins below and a few tools of text: no network, no process and no
file of this machine. Nothing comes back but the command lines.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

#: What starts a job, and is written down.
STARTERS = ("accelerate", "deepspeed", "mpirun", "python", "python3", "ray", "srun", "torchrun", "uv")
#: What else the scripts call. None of it does anything.
_SILENT = (
    "apptainer", "apt", "apt-get", "conda", "curl", "docker", "git", "hf", "hostname", "huggingface-cli",
    "ip", "kill", "killall", "kubectl", "lsof", "modelscope", "mount", "nc", "netstat", "nohup", "nproc",
    "nsys", "numactl", "nvcc", "nvidia-smi", "pgrep", "pip", "pip3", "pkill", "ps", "rm", "rsync", "scontrol",
    "sleep", "ssh", "sudo", "tee", "ulimit", "umount", "wget", "which", "xargs",
)  # fmt: skip
#: What they really need, on texts and on the files of the copy.
_REAL = (
    "awk", "basename", "bash", "cat", "cp", "cut", "date", "dirname", "echo", "env", "expr", "find", "grep",
    "head", "ln", "ls", "mkdir", "mv", "printf", "pwd", "readlink", "realpath", "sed", "seq", "sh", "sort",
    "tail", "touch", "tr", "true", "uname", "uniq", "wc",
)  # fmt: skip
#: Seconds for one script, which may wait for a server that never comes.
_PATIENCE = 10
_STARTER = '#!/bin/bash\n{ printf "%s\\0" "${0##*/}" "$@"; printf "\\1"; } >> "$STARTED"\n'
#: Finds the variable for want of which a script ended; it is given then, and the script run again.
_MISSING = r"s/.*line [0-9]*: \([A-Z][A-Z0-9_]*\): .*/\1/p; s/.*\b\([A-Z][A-Z0-9_]*\) is not set.*/\1/p"
_NAMESPACES = (
    "unshare",
    "--map-root-user",
    "--mount",
    "--net",
    "--pid",
    "--ipc",
    "--uts",
    "--fork",
    "--kill-child",
)
#: Makes a root of its own for a tree, in memory, and forgets the machine's.
_ENTER = r"""
set -e
mount -t tmpfs none "$ROOT"
cd "$ROOT"
mkdir -p bin dev lib lib64 usr/lib old proc root tmp tree
cp -r "$PROGRAMS/." bin
cp -r "$TREE/." tree
for folder in lib lib64 usr/lib; do
  mount --bind "/$folder" "$folder"
  mount -o remount,bind,ro "$folder"
done
touch dev/null
mount --bind /dev/null dev/null
mount -t proc none proc 2> /dev/null || true
ln -s /proc/self/fd dev/fd
pivot_root . old
/old"$(readlink -f /old/usr/bin/umount | sed 's,^/old,,')" -l /old
for name in slime miles verl; do /bin/ln -s /tree "/root/$name"; done
cd /tree
while read -r script; do
  given=()
  for _ in {1..12}; do
    : > /tmp/started
    env -i PATH=/bin HOME=/tmp USER=user STARTED=/tmp/started BASH_ENV=/bin/.env "${given[@]}" \
      .timeout -s KILL "$PATIENCE" bash "$script" < /dev/null > /tmp/said 2>&1 || true
    missing=$(sed -n "$MISSING" /tmp/said | tail -n 1)
    [ -n "$missing" ] || break
    given+=("$missing=given")
  done
  cat /tmp/started
  printf '\2'
done
"""


class NoNamespaceError(RuntimeError):
    """This machine gives no namespaces, and without them no script is run."""


def command_lines(tree: Path, scripts: Sequence[str]) -> dict[str, list[list[str]]]:
    """Return the command lines that each script of a tree starts a program with.

    Raises:
        NoNamespaceError: There is no namespace to run them in.

    """
    with tempfile.TemporaryDirectory() as folder:
        root, programs = Path(folder, "root"), Path(folder, "programs")
        root.mkdir()
        programs.mkdir()
        for name in (*STARTERS, *_SILENT):
            (programs / name).write_text(_STARTER if name in STARTERS else "#!/bin/bash\n")
            (programs / name).chmod(0o755)
        (programs / ".env").write_text("enable -n kill ulimit\n")
        for name in (*_REAL, "timeout"):
            if found := shutil.which(name):
                shutil.copy(found, programs / (f".{name}" if name == "timeout" else name))
        if shutil.which("unshare") is None:
            raise NoNamespaceError("scripts are run in namespaces of their own only, and there is no unshare")
        done = subprocess.run(
            [*_NAMESPACES, "bash", "-c", _ENTER],
            input="".join(f"{script}\n" for script in scripts).encode(),
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "ROOT": str(root), "PROGRAMS": str(programs),
                 "TREE": str(tree), "PATIENCE": str(_PATIENCE), "MISSING": _MISSING},
            capture_output=True, check=False, timeout=_PATIENCE * (len(scripts) + 6),
        )  # fmt: skip
    told = done.stdout.decode(errors="replace").split("\2")[:-1]
    if len(told) != len(scripts):
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["no namespace"]
        raise NoNamespaceError(f"scripts are run in namespaces of their own only: {said[-1]}")
    lines = [[line.split("\0")[:-1] for line in one.split("\1")[:-1]] for one in told]
    return dict(zip(scripts, lines, strict=True))
