"""The file of what was proven here: TOML that `overlay prove --trust` writes, and `OVERLAY_TRUST` names.

As a lock, it holds nothing that could be run or fetched, and is believed whole or not at all. Its digest
tells that nobody has edited it, not who wrote it.
"""

from __future__ import annotations

from overlay.base.record import TYPE_CHECKING, Record
from overlay.deciding.trusted import Trusted, TrustedTarget
from overlay.errors import TrustError
from overlay.pinning import own_digest, schema
from overlay.pinning.lock import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from overlay.patch import Patch

#: Grows when an older overlay could not read what is written.
FORMAT = 1
_TARGET = {
    **dict.fromkeys(("project", "version", "verdict", "variant"), str),
    "sites": schema.TEXTS,
    "trusted": schema.TEXTS,
}
_PROOF = {
    **dict.fromkeys(("patch", "content", "shared", "date", "seeds", "overlay"), str),
    "revision": int,
    "environment": schema.TEXTS,
    "target": [_TARGET],
}
_SCHEMA = {"format": int, "digest": str, "proof": [_PROOF]}
_HEAD = "# Written by `overlay prove --trust`, named by OVERLAY_TRUST. Not to be edited: it has a digest.\n"
_WAY_OUT = "`overlay prove --trust` writes it anew once it is moved away; without it, unset OVERLAY_TRUST"


class Proof(Record):
    """A patch that was proven on a source that it does not know, and what that was proven of."""

    patch: str
    revision: int
    #: Digest of the patch's own code.
    content: str
    #: Digest of what the patches of its package share.
    shared: str
    #: Day, in UTC.
    date: str
    #: Of what the contract drew, separated by commas.
    seeds: str
    #: Version of overlay.
    overlay: str
    #: Versions of what a lock records beside the patched projects; empty of what was not installed.
    environment: tuple[tuple[str, str], ...]
    targets: tuple[TrustedTarget, ...]

    @property
    def told(self) -> str:
        """Return when and how it was proven."""
        beside = ", ".join(f"{name} {version or 'absent'}" for name, version in self.environment)
        return f"proven on {self.date} with seeds {self.seeds.replace(',', ', ')} and {beside}"


def trusted(path: str, patches: Iterable[Patch]) -> dict[str, Trusted]:
    """Return what a file says was proven, by patch, each void that was proven of other code than is here.

    Raises `TrustError` if the file cannot be read, or is not as it was written.
    """
    known = {patch.id: patch for patch in patches}
    return {
        proof.patch: Trusted(
            patch=proof.patch, targets=proof.targets, proven=proof.told, file=path,
            void=_void(proof, known[proof.patch]),
        )
        for proof in read(path)
        if proof.patch in known
    }  # fmt: skip


def _void(proof: Proof, patch: Patch) -> str:
    if proof.revision != patch.revision:
        found = f"it is of revision {proof.revision} of the patch, and this is {patch.revision}"
    elif proof.content != own_digest.of_patch(patch.id):
        found = "the code of the patch is another one by now"
    elif proof.shared != own_digest.of_shared(patch.id):
        found = "the code that patches share is another one by now"
    else:
        return ""
    return f"{found}: prove it anew with `overlay prove --trust {patch.id}`"


def read(path: str) -> list[Proof]:
    """Return what a file says was proven. Raises `TrustError`."""
    try:
        data = schema.read(path, _SCHEMA, FORMAT)
    except OSError as error:
        raise TrustError(f"OVERLAY_TRUST={path!r} cannot be read: {error} ({_WAY_OUT})") from error
    except schema.NewerError as error:
        raise TrustError(f"OVERLAY_TRUST={path!r} {error}") from error
    except schema.DamagedError as error:
        raise TrustError(f"OVERLAY_TRUST={path!r} {error} ({_WAY_OUT})") from error
    names = [proof["patch"] for proof in data["proof"]]
    if len({*names}) < len(names) or _digest(data["proof"]) != data["digest"]:
        what = "is damaged, or was edited: it is not what its digest says"
        raise TrustError(f"OVERLAY_TRUST={path!r} {what} ({_WAY_OUT})")
    return [_proof(item) for item in data["proof"]]


def _proof(item: dict[str, Any]) -> Proof:
    plain = {key: value for key, value in item.items() if key not in ("target", "environment")}
    targets = tuple(
        TrustedTarget(
            **{key: target[key] for key in ("project", "version", "verdict", "variant")},
            sites=tuple(sorted(target["sites"].items())),
            trusted=tuple(sorted(target["trusted"])),
        )
        for target in item["target"]
    )
    return Proof(**plain, targets=targets, environment=tuple(sorted(item["environment"].items())))


def write(path: str, proofs: Iterable[Proof]) -> None:
    """Write what was proven: the whole of it, or what was there before stays. Raises `OSError`."""
    items = [_item(proof) for proof in sorted(proofs, key=lambda proof: proof.patch)]
    data = {"format": FORMAT, "digest": _digest(items), "proof": items}
    schema.save(path, schema.write(_HEAD, data, _SCHEMA))


def _item(proof: Proof) -> dict[str, Any]:
    """Return a proof as it stands in the file."""
    plain = proof.to_dict()
    del plain["targets"]
    return {
        **plain,
        "environment": dict(proof.environment),
        "target": [
            {
                **target.to_dict(),
                "sites": dict(target.sites),
                "trusted": {site: dict(target.sites)[site] for site in target.trusted},
            }
            for target in proof.targets
        ],
    }


def _digest(items: list[dict[str, Any]]) -> str:
    import json

    return digest_of({str(place): json.dumps(item, sort_keys=True) for place, item in enumerate(items)})
