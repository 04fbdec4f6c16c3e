"""The errors that fxrewrite raises on purpose: each message is one line that says what to do."""

from __future__ import annotations

import os
import re

MINIMUM_TORCH = (2, 11)


class FxrewriteError(Exception):
    """Base class: something is wrong that the user can set right; the message says how."""


def is_strict() -> bool:
    """Are faults of ours raised (FXREWRITE_STRICT=1, as in our tests), or contained and reported?"""
    return os.environ.get("FXREWRITE_STRICT", "0") not in ("", "0")


class UsageError(FxrewriteError):
    """An argument, option, rule or configuration value is not one of those accepted."""


class TargetError(FxrewriteError):
    """The TARGET of the command line does not lead to a model."""


class CaptureError(FxrewriteError):
    """A model could not be captured as a graph."""


class UnsupportedTorchError(FxrewriteError):
    """The installed torch is older than the oldest that fxrewrite works with."""


def first_line(error: BaseException) -> str:
    """The first line of an exception's text that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def require_torch() -> None:
    """Raise `UnsupportedTorchError` unless the installed torch is 2.11 or newer."""
    needed = ".".join(map(str, MINIMUM_TORCH))
    try:
        from torch import __version__ as installed
    except ModuleNotFoundError as error:
        raise UnsupportedTorchError(
            f"module {error.name!r} is not installed, and fxrewrite needs torch {needed} or newer: "
            f"pip install 'torch>={needed}'"
        ) from error
    except (ImportError, OSError) as error:  # a library that it needs is missing or of another version
        raise UnsupportedTorchError(
            f"torch is installed but cannot be imported ({error}): install it anew, {needed} or newer"
        ) from error
    found = re.match(r"(\d+)\.(\d+)", str(installed))
    if found is None or (int(found[1]), int(found[2])) < MINIMUM_TORCH:
        raise UnsupportedTorchError(
            f"torch {installed} is too old, fxrewrite needs {needed} or newer: pip install 'torch>={needed}'"
        )
