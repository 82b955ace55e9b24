"""The Triton kernels of the loss in Triton's interpreter, held to what the blocks of torch are held to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import triton_on_cpu
from checks import RANKS, SEED

from sources.fetch_release import FetchError

ROOT = Path(__file__).parents[3]
#: Of float32 in parts of the norm, and of what is rounded to bfloat16: one unit of its last place.
TOLERANCE = {"torch.float32": 1e-6, "torch.bfloat16": 2**-7}

#: The tests of the function itself, with several tiles in a row, and how often the kernels were run.
AGAIN = """
import gc, json, sys, pytest
from overlay.patches._packed_loss import row_kernels, triton_rows
triton_rows.TILE = 256
gc.freeze()
calls = {"local_terms": 0, "write_rows": 0}
def counted(name):
    plain = getattr(triton_rows, name)
    def call(*arguments):
        calls[name] += 1
        found = plain(*arguments)
        # The interpreter leaves the storages that it was given in a circle of its own.
        gc.collect()
        return found
    return call
for name in calls:
    setattr(triton_rows, name, counted(name))
class Ends:
    def pytest_collection_modifyitems(self, items):
        # One draw of each kind: an interpreter takes its time.
        items[:] = [item for item in items if getattr(item, "callspec", None) is None
                    or item.callspec.params.get("index", 0) == 0]
    def pytest_sessionfinish(self, session, exitstatus):
        self.ran = session.testscollected
ends = Ends()
# Of the interpreter, to which a number is an array.
quiet = ["-W", "ignore:invalid value", "-W", "ignore::DeprecationWarning"]
status = pytest.main(["-q", "-p", "no:cacheprovider", *quiet, *sys.argv[1:]], plugins=[ends])
print(json.dumps({"status": int(status), "ran": ends.ran, "calls": calls}))
"""


def environment(folder: Path, **options: Any) -> dict[str, str]:
    try:
        return {**triton_on_cpu.environment(folder, **options), "OVERLAY_TEST_SEED": SEED}
    except FetchError as error:
        pytest.skip(str(error))


def run(*words: str, env: dict[str, str]) -> Any:
    """Return what a program printed as JSON in its last line."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *words], env=env, cwd=ROOT,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:], f"seed {SEED}")
    return json.loads(done.stdout.splitlines()[-1])


def run_text(folder: Path, text: str, *words: str, **options: Any) -> Any:
    """Return what the text of a program printed: of a kernel Triton reads the file that it is in."""
    file = folder / "program.py"
    file.write_text(text)
    return run(str(file), *words, env=environment(folder, **options))


def test_what_holds_of_the_blocks_holds_of_the_kernels(tmp_path: Path) -> None:
    file = Path(__file__).with_name("test_vocab_parallel.py")
    some = "values_and or each_value or huge or infinite or metric or no_rows or contiguous or place or twice"
    done = subprocess.run(
        [sys.executable, "-c", AGAIN, str(file), "-k", some], env=environment(tmp_path), cwd=ROOT,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["status"] == 0, done.stdout[-4000:]
    # Nearly all of them: one is of float64, which stays with the blocks.
    assert found["ran"] > 10
    assert min(found["calls"].values()) > found["ran"]


def test_slices_of_a_vocabulary_on_two_ranks(tmp_path: Path) -> None:
    env = environment(tmp_path)
    program, store = str(RANKS / "triton_loss_main.py"), str(tmp_path / "store")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", program, str(rank), "2", store, SEED],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for out, error in said:
        assert out, error[-3000:]
        found = json.loads(out.splitlines()[-1])
        assert len(found["errors"]) == found["calls"]["triton"] == 14
        assert found["calls"]["blocks"] == 0
        for case, row in found["errors"].items():
            most = TOLERANCE[case.partition(",")[0]]
            for name, error_of in row["triton"].items():
                assert error_of <= most, (case, name, row, f"seed {SEED}")


FAR = """
import json, sys, torch
from overlay.patches._packed_loss import row_blocks, triton_rows
from overlay.patches._packed_loss.row_blocks import Rows

triton_rows.TILE = 1024
tokens, wide = 40_000, 60_000
assert tokens * wide > 2**31
flat = torch.from_file(sys.argv[1], shared=True, size=tokens * wide, dtype=torch.bfloat16).view(tokens, wide)
# Every row that matters lies beyond what 32 bits can count. Of a slice of columns rows are further apart.
flat = flat[:, 17 : 17 + 2500]
rows = Rows([(39_990, 39_992), (39_997, 39_999)], temperature=0.7, with_entropy=True)
rows.gaps = lambda count: []  # or all of the file is written
near = Rows([(0, 4)], temperature=0.7, with_entropy=True)
lines = rows.lines("cpu")
made = torch.Generator().manual_seed(int(sys.argv[2]))
flat[lines] = (torch.randn(4, 2500, generator=made) * 3).bfloat16()
copy = flat[lines]
exact = copy.double()
found = triton_rows.local_terms(flat, 4, rows)
wanted = row_blocks.local_terms(exact, 4, near)
errors = [float(((a.double() - b) / b).abs().max()) for a, b in zip(found, wanted)]
constant, slope = torch.randn(2, 4, generator=made, dtype=torch.float64)
gradient = torch.empty_like(exact)
row_blocks.write_rows(exact, gradient, wanted[0], constant, slope, near)
triton_rows.write_rows(flat, flat, found[0], constant, slope, rows)
errors.append(float((flat[lines].double() - gradient).norm() / gradient.norm()))
print(json.dumps({"errors": errors, "others": bool(flat[39_992:39_997].any() or flat[0].any())}))
"""


def test_rows_beyond_what_32_bits_can_count(tmp_path: Path) -> None:
    """Of 2.4e9 logits, in a file of which only four rows are ever written."""
    logits = tmp_path / "logits"
    with logits.open("wb") as sparse:
        sparse.truncate(40_000 * 60_000 * 2)
    found = run_text(tmp_path, FAR, str(logits), SEED)
    assert max(found["errors"][:3]) < 1e-5
    assert found["errors"][3] < TOLERANCE["torch.bfloat16"]
    assert not found["others"]


EXPONENTIALS = """
import json, torch, triton, triton.language as tl
from overlay.patches._packed_loss.triton_rows import _exp

@triton.jit
def kernel(numbers, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, _exp(tl.load(numbers + at)))

u = -torch.rand(8192) * 87
u[:5] = torch.tensor([0.0, -0.0, -torch.inf, -1e30, torch.nan])
found = torch.empty_like(u)
kernel[1,](u, found, N=8192)
exact = u.double().exp()
off = ((found.double() - exact).abs() / exact)[5:].max()
print(json.dumps({"ends": found[:5].tolist(), "off": float(off)}))
"""


def test_the_exponential(tmp_path: Path) -> None:
    found = run_text(tmp_path, EXPONENTIALS)
    assert found["ends"][:4] == [1, 1, 0, 0]
    assert found["ends"][4] != found["ends"][4]
    assert found["off"] < 3e-7


COMPILED = """
import json, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from overlay.patches._packed_loss import triton_rows as kernels

found = []
for dtype in ("fp32", "bf16"):
    logits, sums = "*" + dtype, "*fp64"
    shared = {"logits": logits, "stride": "i32", "lines": "*i64", "top": logits}
    shared |= {"width": "i32", "inverse": sums}
    for kernel, more, flag in (
        (kernels._terms, {"rest": sums, "weighted": sums}, "WEIGHTED"),
        (kernels._gradient, {"out": logits, "pitch": "i32", "constant": "*fp32", "slope": "*fp32"}, "SLOPE"),
    ):
        for on in (True, False):
            given = {**shared, **more, flag: "constexpr", "TILE": "constexpr"}
            signature = {name: given[name] for name in kernel.arg_names}
            source = ASTSource(kernel, signature=signature, constexprs={flag: on, "TILE": kernels.TILE})
            options = {"num_warps": kernels._WARPS}
            made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
            found.append([len(made.asm["cubin"]), made.asm["ptx"].count(".local")])
print(json.dumps(found))
"""


def test_they_compile_for_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    """The interpreter takes what a compiler does not, and does not see what fits into no register."""
    if sys.platform != "linux":
        pytest.skip("the assembler is Linux's")
    found = run_text(tmp_path, COMPILED, interpreted=False)
    assert len(found) == 8
    assert all(size > 0 and spilled == 0 for size, spilled in found)


WAYS_OUT = """
import json, os, sys, warnings
import torch
from overlay import log
from overlay.patches._packed_loss import row_blocks, row_kernels

said, taken = [], {}
log.warning = said.append
log.own = lambda line: taken.setdefault("own", []).append(line)

def name(flat):
    return row_kernels.rows_of(flat).__name__.rpartition(".")[2]

plain = torch.zeros(2, 3)
os.environ["OVERLAY_LOSS_KERNEL"] = "blocks"
taken["not asked for"] = name(plain)
os.environ["OVERLAY_LOSS_KERNEL"] = "triton"
taken["float64"] = name(plain.double())
state = torch.get_rng_state()
from overlay.patches._packed_loss import triton_rows
triton_rows.TILE = 64
with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
    taken["autocast"] = name(plain)
taken["again"] = name(plain)
row_kernels._found.clear()
torch.set_default_dtype(torch.bfloat16)
with torch.device("meta"):
    taken["another default"] = name(plain)
torch.set_default_dtype(torch.float32)
taken["generator"] = bool((torch.get_rng_state() == state).all())
right = triton_rows.write_rows
for what in ("wrong", "raises"):
    row_kernels._found.clear()
    def broken(flat, out, top, constant, slope, rows):
        if what == "raises":
            raise RuntimeError("no such instruction\\nand more")
        right(flat, out, top, constant * 1.001, slope, rows)
    triton_rows.write_rows = broken
    taken[what] = name(plain)
triton_rows.write_rows = right
row_kernels._found.clear()
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    taken["fake"] = name(torch.zeros(2, 3))
taken["meta"] = name(torch.zeros(2, 3, device="meta"))
print(json.dumps({"said": said, "taken": taken}))
"""


def test_when_the_kernels_are_taken_and_when_not(tmp_path: Path) -> None:
    found = run_text(tmp_path, WAYS_OUT)
    taken = found["taken"]
    own = ["loss by Triton kernels on cpu, torch.float32: as float64 has it on 8 rows"]
    assert taken.pop("own") == 2 * own
    assert taken.pop("generator")
    assert {what for what, name in taken.items() if name == "triton_rows"} == {
        *("autocast", "again", "another default"),
    }
    first = "OVERLAY_LOSS_KERNEL=triton: blocks instead, of torch.float32: "
    said = [line.removeprefix(first) for line in found["said"]]
    assert said[0].endswith("torch.float64 has no kernel")
    assert said[1].startswith("the gradient of a row is off by 1")
    assert said[2] == "the kernels do not run: RuntimeError: no such instruction"
    assert len(said) == 4


def test_without_triton_it_is_torch_and_said_once() -> None:
    script = (
        "import sys, types, json, torch; sys.modules['triton'] = types.ModuleType('triton');"
        "from overlay import log; said = []; log.warning = said.append;"
        "from overlay.patches._packed_loss import row_kernels as k;"
        "names = [k.rows_of(torch.zeros(2, 3)).__name__ for _ in range(2)]; print(json.dumps([names, said]))"
    )
    env = {**os.environ, "OVERLAY_LOSS_KERNEL": "triton"}
    names, said = run("-c", script, env=env)
    assert {name.rpartition(".")[2] for name in names} == {"row_blocks"}
    assert said == ["OVERLAY_LOSS_KERNEL=triton: blocks instead, of torch.float32: Triton is not installed"]
