"""Runs the contracts of patches on what is installed here, and judges each by its two runs."""

from __future__ import annotations

from overlay.desk.prove.forked import HOLDS, RAISES, WRONG
from overlay.desk.prove.processes import Outcome, environment, outcomes
from overlay.desk.prove.runner import NOT_RUN, STRICTLY, WITH
from overlay.model.record import TYPE_CHECKING, Record
from overlay.model.settings import ALONE
from overlay.source.registry import contract_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from overlay.patch import Contract, Patch
    from overlay.verdict import Verdict

#: What is said of a patch: upstream alone fails its contract, and the patch keeps it; both keep it, as the
#: contract says of itself; both keep it, and upstream should not; the patch does not; it was not run.
PROVEN, HARMLESS, UNSHOWN, FAILS = "proven", "harmless", "not shown", "FAILS"
#: These are failures.
FAILING = (UNSHOWN, FAILS)


class Row(Record):
    """A patch whose contract was run, or was not."""

    patch: str
    revision: int
    #: Projects and versions, as `verl 0.8.0`.
    where: str
    #: `proven`, `harmless`, `not shown`, `FAILS` or `not run`.
    verdict: str
    #: Why it is not proven; of one that is, what upstream alone gets wrong.
    why: str
    #: What the contract found on upstream alone and with the patch, `None` of one that was not run at all.
    alone: Outcome | None = None
    patched: Outcome | None = None


class Options(Record):
    """How contracts are run."""

    seed: str
    #: For one run of a contract.
    seconds: float
    #: `cpu` or `cuda`.
    device: str
    #: Versions of what a lock records beside the patched projects.
    beside: dict[str, str]
    #: The file of what is trusted, where it is not that of `OVERLAY_TRUST`.
    trust: str = ""


def prove(
    wanted: Sequence[tuple[Patch, Verdict]],
    options: Options,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[Row]:
    """Run the contracts of patches that apply, each on upstream alone and with the patch.

    Args:
        wanted: Patches, and what is decided on each. One that does not apply is not run, and that is said.
        options: How.
        progress: Is told how many runs are done, of how many, and which patch is next.

    Returns:
        A row for each, in the same order.

    """
    rows: dict[str, Row] = {}
    groups: dict[tuple[str, ...], list[tuple[Patch, Verdict]]] = {}
    for patch, verdict in wanted:
        contract = contract_of(patch.id) if verdict.verdict == "apply" else None
        why = _not_run(verdict, contract, options.device)
        if why or contract is None:
            rows[patch.id] = _row(patch, verdict, verdict=NOT_RUN, why=why)
        else:
            # What one contract imports first must not be there before another enables its patch.
            project = patch.targets[0].project.name
            groups.setdefault((project, *contract.before), []).append((patch, verdict))
    total, done = 2 * sum(map(len, groups.values())), 0
    for group in groups.values():
        jobs = [(patch.id, how) for patch, _ in group for how in (ALONE, STRICTLY if options.trust else WITH)]

        def tell(name: str) -> None:
            nonlocal done
            if progress is not None:
                progress(done, total, name)
            done += 1

        environ = environment(options.device, options.trust)
        found = outcomes(jobs, options.seed, seconds=options.seconds, environ=environ, tell=tell)
        for (patch, verdict), alone, patched in zip(group, found[::2], found[1::2], strict=True):
            said, why = judge(alone, patched, contract_of(patch.id))
            rows[patch.id] = _row(patch, verdict, verdict=said, why=why, alone=alone, patched=patched)
    return [rows[patch.id] for patch, _ in wanted]


def judge(alone: Outcome, patched: Outcome, contract: Contract | None) -> tuple[str, str]:
    """Return what is said of a patch, and why, by what its contract found on upstream alone and with it."""
    if patched.outcome == NOT_RUN:
        return NOT_RUN, patched.why
    if patched.outcome != HOLDS:
        return FAILS, f"with the patch: {_said(patched)}"
    # As the patch holds in the same surroundings, it is upstream that raised.
    if alone.outcome in (WRONG, RAISES):
        return PROVEN, alone.why
    if alone.outcome != HOLDS:
        return UNSHOWN, f"upstream alone: {_said(alone)}"
    if contract is not None and contract.harmless:
        return HARMLESS, f"upstream alone keeps it too: {contract.harmless}"
    return UNSHOWN, "upstream alone keeps the contract: it does not show the defect here"


def fails(rows: Sequence[Row], named: Sequence[str]) -> bool:
    """Return whether a contract fails, was not run although its patch was named, or none was run at all."""
    ran = [row for row in rows if row.verdict != NOT_RUN]
    return (
        not ran
        or any(row.verdict in FAILING for row in rows)
        or any(row.verdict == NOT_RUN and row.patch in named for row in rows)
    )


def _said(outcome: Outcome) -> str:
    return f"{outcome.outcome}: {outcome.why}" if outcome.why else outcome.outcome


def _not_run(verdict: Verdict, contract: Contract | None, device: str) -> str:
    """Return why a contract is not run, empty if it is."""
    if verdict.verdict != "apply":
        return f"{verdict.verdict}: {verdict.reason}" if verdict.reason else verdict.verdict
    if contract is None:
        return "it has no contract"
    if device not in contract.devices:
        return f"its contract runs on {', '.join(contract.devices)} alone"
    return ""


def _row(patch: Patch, decided: Verdict, **fields: object) -> Row:
    return Row(patch=patch.id, revision=patch.revision, where=decided.where(), **fields)  # type: ignore[arg-type]
