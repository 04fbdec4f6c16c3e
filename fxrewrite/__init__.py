"""fxrewrite: the kernels of serving engines for any PyTorch model, with a report of every site.

    import fxrewrite
    fast = fxrewrite.rewrite(model, args, kwargs)     # a module, faster, with .report
    print(fast.report)

or ``torch.compile(model, backend="fxrewrite")``, or on the command line ``fxrewrite sites TARGET``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import CaptureError, FxrewriteError, UnsupportedTorchError, UsageError, require_torch
from .garbage import collecting_less

__version__ = "0.1.0"

_unsupported: UnsupportedTorchError | None = None
with collecting_less():  # while torch is imported
    try:
        require_torch()
    except UnsupportedTorchError as error:
        # told by whoever uses the package, so that the command line can say it in one line
        _unsupported = error

    if TYPE_CHECKING or _unsupported is None:
        from . import ops
        from .api import analyze, compile_report, restore, rewrite
        from .matching import Rule
        from .ops.counters import counters, reset_counters
        from .quality import quality
        from .report import Report, Site


def __getattr__(name: str) -> Any:
    if _unsupported is not None and name in __all__:
        raise _unsupported
    raise AttributeError(f"module 'fxrewrite' has no attribute {name!r}")


__all__ = [
    "CaptureError",
    "FxrewriteError",
    "Report",
    "Rule",
    "Site",
    "UsageError",
    "__version__",
    "analyze",
    "compile_report",
    "counters",
    "ops",
    "quality",
    "reset_counters",
    "restore",
    "rewrite",
]
