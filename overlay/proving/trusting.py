"""Trusts patches on sources that they do not know: what `overlay prove --trust` does.

A patch is trusted where digests alone stand in its way, what it replaces takes and reads what a known source
does, its contract is strong enough, and the contract, with every seed, fails on upstream alone, holds with
the patch on this very source, and finds nothing that the patch would undo of it.
"""

from __future__ import annotations

import os
import tempfile
from datetime import datetime, timezone

from overlay._version import __version__
from overlay.base.record import TYPE_CHECKING, Record
from overlay.deciding.decide import combine, variant_of
from overlay.deciding.trusted import as_trusted, candidate
from overlay.pinning import own_digest, trustfile
from overlay.proving import prove, strength
from overlay.proving.forked import WRONG
from overlay.proving.runner import NOT_RUN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from overlay.patch import Patch
    from overlay.reading.source import Tree
    from overlay.verdict import Verdict

#: Seeds that a contract is run with before a patch is trusted.
SEEDS = 3


class Trial(Record):
    """A patch that digests alone stand in the way of, or why it cannot be trusted."""

    patch: str
    #: Why it was refused before anything was run; empty if it was run.
    refused: str
    #: What its contract found, with one seed after the other, up to the first that does not prove it.
    rows: tuple[prove.Row, ...] = ()
    #: What is written down; `None` if it is not trusted.
    proof: trustfile.Proof | None = None

    @property
    def why(self) -> str:
        """Return why it is not trusted, empty if it is."""
        if self.proof is not None or self.refused:
            return self.refused
        last = self.rows[-1]
        if last.verdict == prove.PROVEN:
            return f"upstream alone raises, which need not be the defect: {last.why}"
        return f"{last.verdict}: {last.why}"


def trust(
    wanted: Sequence[tuple[Patch, Verdict]],
    tree: Tree,
    options: prove.Options,
    before: Sequence[trustfile.Proof],
    progress: Callable[[int, int, str], None] | None = None,
) -> list[Trial]:
    """Try patches that are `unsupported` here, each in its turn.

    Args:
        wanted: Patches with what is decided on them, each after those that it requires.
        tree: What that was decided on.
        options: How contracts are run; the first seed.
        before: What is trusted already, and stays so.
        progress: As of `prove.prove`.

    """
    record = strength.record()
    trials: list[Trial] = []
    for patch, verdict in wanted:
        proof = _proof(patch, verdict, tree, record.get(patch.id, {}), options)
        if isinstance(proof, str):
            trials.append(Trial(patch=patch.id, refused=proof))
            continue
        others = [one for one in before if one.patch != patch.id]
        others += [one.proof for one in trials if one.proof is not None]
        rows = _rows(patch, verdict, [*others, proof], options, progress)
        held = len(rows) == SEEDS and all(map(shows, rows))
        trials.append(Trial(patch=patch.id, refused="", rows=rows, proof=proof if held else None))
    return trials


def shows(row: prove.Row) -> bool:
    """Return whether a patch is proven, and the contract says what upstream alone gets wrong.

    That upstream alone raises will do where the source is known. Here it may be for a reason of its own.
    """
    return row.verdict == prove.PROVEN and row.alone is not None and row.alone.outcome == WRONG


def seeds(first: str) -> list[str]:
    """Return the seeds that follow from the first."""
    start = int(first) if first.isdecimal() else 0
    return [first, *(str(start + step) for step in range(1, SEEDS))]


def _proof(
    patch: Patch,
    verdict: Verdict,
    tree: Tree,
    entry: dict[str, object],
    options: prove.Options,
) -> trustfile.Proof | str:
    """Return what would be written down of a patch, or why that cannot be, before anything is run."""
    if verdict.verdict != "unsupported":
        return f"{verdict.verdict}: {verdict.reason}"
    targets = candidate(patch, verdict, tree)
    if isinstance(targets, str):
        return targets
    word, reason = combine(targets)
    if word != "apply":
        return f"{word}: {reason}"
    for target in targets:
        variant = variant_of(patch, target) if target.trusted else None
        other = strength.other(entry, variant.replacements, tree) if variant is not None else ""
        if other:
            return other
    if weak := strength.too_weak(strength.strength(entry), patch.revision):
        return weak
    return trustfile.Proof(
        patch=patch.id,
        revision=patch.revision,
        content=own_digest.of_patch(patch.id),
        shared=own_digest.of_shared(patch.id),
        date=datetime.now(tz=timezone.utc).date().isoformat(),
        seeds=",".join(seeds(options.seed)),
        overlay=__version__,
        environment=tuple(sorted(options.beside.items())),
        targets=tuple(map(as_trusted, targets)),
    )


def _rows(
    patch: Patch,
    verdict: Verdict,
    proofs: Sequence[trustfile.Proof],
    options: prove.Options,
    progress: Callable[[int, int, str], None] | None,
) -> tuple[prove.Row, ...]:
    """Return what the contract found with each seed, up to the first that does not prove the patch."""
    found: list[prove.Row] = []
    with tempfile.TemporaryDirectory() as folder:
        # On trial: read by the processes of the contract alone, and gone with the folder.
        path = os.path.join(folder, "trial.toml")
        trustfile.write(path, proofs)
        applies = verdict.replace(verdict="apply")
        for seed in seeds(options.seed):
            given = options.replace(seed=seed, trust=path)
            found += prove.prove([(patch, applies)], given, progress)
            if not shows(found[-1]):
                break
    return tuple(found)


def failed(trials: Sequence[Trial]) -> bool:
    """Return whether a patch that was tried is not trusted because its contract does not hold here."""
    return any(trial.rows and trial.proof is None and trial.rows[-1].verdict != NOT_RUN for trial in trials)
