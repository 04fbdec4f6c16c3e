"""The face of the package: ``rewrite``, ``restore`` and ``analyze``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from torch import nn
from torch.export import ExportedProgram

from .errors import UsageError
from .report import Report


@overload
def rewrite(model: ExportedProgram, **options: Any) -> ExportedProgram: ...


@overload
def rewrite(
    model: nn.Module,
    args: Sequence[Any] = ...,
    kwargs: Mapping[str, Any] | None = ...,
    *,
    inplace: bool = ...,
    **options: Any,
) -> nn.Module: ...


def rewrite(
    model: nn.Module | ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    inplace: bool = False,
    **options: Any,
) -> nn.Module | ExportedProgram:
    """``model`` with its sites replaced by faster operators.

    With example ``args`` / ``kwargs`` the model is captured at once (on fake tensors: nothing is
    computed), and ``.report`` says what will be replaced; without, at the first call. Other inputs
    than the examples are fine: shapes, dtypes and flags are checked at every call.

    The result is a copy of the model's structure on the *same* parameters and buffers; ``model`` is
    not changed. With ``inplace=True`` the model's own ``forward`` is patched and the model itself
    returned, so that ``pipe.transformer`` or ``model.generate`` profit; ``restore`` undoes it.

    An ExportedProgram becomes another ExportedProgram (no example inputs: it has its own).

    ``options``: ``then`` ("eager" or "inductor": what runs the rewritten graph), ``on_unknown``
    ("dispatch" or "reject": what to do with a site whose conditions cannot be proved), ``rules``
    (a sequence of Rule instances in place of ``fxrewrite.patterns.DEFAULT``).

    What cannot be captured stays eager, and the report's notes say what and why. Raises UsageError for
    a wrong argument or option, CaptureError for a model whose structure cannot be copied.
    """
    from .exported import rewrite_exported
    from .module import rewrite_module
    from .rewriting import make_options

    if isinstance(model, ExportedProgram):
        if args or kwargs or inplace:
            raise UsageError("an ExportedProgram has its own example inputs, and is never rewritten in place")
        return rewrite_exported(model, make_options(options))
    return rewrite_module(model, args, kwargs, make_options(options), inplace=inplace)


def restore(model: nn.Module) -> nn.Module:
    """Undo ``rewrite(model, inplace=True)``; returns the model. Raises UsageError if it is not rewritten."""
    from .module import restore_module

    return restore_module(model)


def analyze(
    model: nn.Module | ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Report:
    """The report of what ``rewrite`` would do, from a dry run: nothing is computed or changed.

    The model may be on the meta device: it is then analysed as if on the CPU. Options are those of
    ``rewrite``. Raises UsageError for a wrong argument or option, CaptureError for a model of which
    nothing can be captured.
    """
    from .exported import rewrite_exported
    from .module import analyze_module
    from .rewriting import make_options

    if isinstance(model, ExportedProgram):
        # its tensors are fake already, and the program itself is not changed
        report: Report = rewrite_exported(model, make_options(options)).report  # type: ignore[attr-defined]
        report.predicted = True
        return report
    return analyze_module(model, args, kwargs, make_options(options))


__all__ = ["analyze", "restore", "rewrite"]
