"""The errors that overlay raises.

None of them is an `ImportError`: Megatron guards hundreds of imports with `except ImportError`, which
would turn a refusal into silence.
"""

from __future__ import annotations


class OverlayError(RuntimeError):
    """Base of every error that overlay raises on purpose."""


class SelectionError(OverlayError, ValueError):
    """A selection of patches, or a setting, that cannot be understood. The message names the way out."""


class PatchError(OverlayError):
    """A selected patch could not be applied, in strict mode. Nothing of the patch is left in place."""


class SourceError(OverlayError):
    """The source of an upstream module exists but cannot be read or parsed."""


class LockError(OverlayError):
    """A lock is missing, damaged, or of another format. Nothing of it was used."""


class TrustError(LockError):
    """The user's own table, as `OVERLAY_TRUST` names it, is missing or damaged. Nothing of it was used."""


class PinError(PatchError):
    """This process differs from the lock that it is pinned to. The message is the difference."""


class AgreementError(OverlayError):
    """The ranks of a process group do not run the same patches on the same sources, or some run none."""


class WorkersError(OverlayError):
    """The workers of a job cannot be enabled from its driver, in strict mode. Nothing was sent to them."""


class ReportError(OverlayError):
    """A report cannot be made: a file that cannot be read or written, or an extra that is not installed."""


class SettingsError(OverlayError):
    """The settings of a job cannot be read, or are in no form that overlay knows."""


class SuiteError(OverlayError):
    """A recipe or results cannot be understood, or what a recipe names cannot be had."""
