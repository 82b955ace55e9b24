"""An audit of the small upstream, for one defect and one patch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from audit_cases import WRONG, a_defect, a_patch, a_table, write

from overlay.desk.audit import audit as auditing
from overlay.runtime.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.desk.audit.audit import Audit


@pytest.fixture
def audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Audit]:
    """Return what audits the upstream in `tmp_path`; `changes` are those of the defect."""

    def audit(source: str = WRONG, *, selection: str = "all", opt_in: bool = False, **options: Any) -> Audit:
        defect = a_defect().replace(**options.pop("changes", {}))
        monkeypatch.setattr(auditing, "load_defects", lambda _: {defect.id: defect})
        patch = a_patch(opt_in=opt_in)
        engine = Engine(lambda: {patch.id: patch}, table=a_table(tmp_path, defect))
        tree = write(tmp_path, source)
        return auditing.make_audit(engine, engine.plan(selection, tree), tree, **options)

    return audit
