"""An audit of the small upstream, for one defect and one patch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from audit_cases import WRONG, a_defect, a_patch, a_table, write

from overlay.desk.audit import audit as auditing
from overlay.desk.audit.audit import Audit
from overlay.runtime.engine import Engine


@pytest.fixture
def audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Audit]:
    """Return what audits the upstream in `tmp_path`; `changes` are those of the defect."""

    def audit(
        source: str = WRONG, *, selection: str | None = "all", opt_in: bool = False, **options: Any
    ) -> Audit:
        defect = a_defect().replace(**options.pop("changes", {}))
        monkeypatch.setattr(auditing, "load_defects", lambda _: {defect.id: defect})
        patch = a_patch(opt_in=opt_in)
        others = [a_patch().replace(id="lib.other")] if opt_in else []  # else `all` selects nothing
        known = {one.id: one for one in (patch, *others)}
        engine = Engine(lambda: known, table=a_table(tmp_path, defect))
        tree = write(tmp_path, source)
        plan = engine.plan_each(tree) if selection is None else engine.plan(selection, tree)
        return auditing.make_audit(engine, plan, tree, **options)

    return audit
