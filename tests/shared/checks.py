"""Where the modules lie that tests, and some scripts, share. They are imported by their bare names."""

import os
import secrets
from pathlib import Path

_HERE = Path(__file__).resolve().parent
#: Cases and checks that run a release of an upstream, and what stands in for a GPU and for services in it.
UPSTREAMS = _HERE / "upstreams"
#: Cases of gloo ranks (`overlay.compat.ranks` starts them), and what they need.
RANKS = _HERE / "ranks"
#: Small upstreams that are written to disk, and what must hold in them after any call of overlay.
ENGINE = _HERE / "engine"
FOLDERS = (UPSTREAMS, RANKS, ENGINE)
#: Of all that tests draw. Processes that a test starts draw by it too, and a failure prints it.
SEED = os.environ.setdefault("OVERLAY_TEST_SEED", str(secrets.randbelow(2**31)))
