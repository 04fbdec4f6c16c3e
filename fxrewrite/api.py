"""The face of the package: ``rewrite``, ``restore``, ``analyze`` and ``compile_report``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast, overload

from torch import nn
from torch.export import ExportedProgram

from .errors import UsageError
from .pipeline import Pipeline
from .report import Report

Restorable = TypeVar("Restorable")


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


@overload
def rewrite(model: Pipeline, **options: Any) -> Report: ...


def rewrite(
    model: nn.Module | ExportedProgram | Pipeline,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    inplace: bool = False,
    **options: Any,
) -> nn.Module | ExportedProgram | Report:
    """``model`` with its sites replaced by faster operators.

    With example ``args`` / ``kwargs`` the model is captured at once (on fake tensors: nothing is
    computed), and ``.report`` says what will be replaced; without, at the first call. Other inputs
    than the examples are fine: shapes, dtypes and flags are checked at every call.

    The result is a copy of the model's structure on the *same* parameters and buffers; ``model`` is
    not changed. With ``inplace=True`` the model's own ``forward`` is patched and the model itself
    returned, so that ``pipe.transformer`` or ``model.generate`` profit; ``restore`` undoes it.

    An ExportedProgram becomes another ExportedProgram (no example inputs: it has its own).

    A pipeline (an object with ``.components``, as in diffusers) has its models rewritten in place, and
    the report of all of them is returned. It grows as they run, since there are no example inputs. What
    a pipeline runs of a model by another method than ``forward`` (``vae.decode``) stays as it is.

    ``options``: ``then`` ("eager" or "inductor": what runs the rewritten graph), ``on_unknown``
    (what to do with a site whose conditions are neither proved nor refuted: "dispatch", the operator
    decides at every call; "guard", Dynamo compiles once for each side; "reject"), ``rules``
    (a sequence of Rule instances in place of ``fxrewrite.patterns.DEFAULT``).

    What cannot be captured stays eager, and the report's notes say what and why. Raises UsageError for
    a wrong argument or option, CaptureError for a model whose structure cannot be copied.
    """
    from .exported import rewrite_exported
    from .module import rewrite_module
    from .pipeline import is_pipeline, rewrite_pipeline
    from .rewriting import make_options

    if is_pipeline(model):
        if args or kwargs:
            raise UsageError("a pipeline's models get their inputs from it: give no example inputs")
        return rewrite_pipeline(cast(Pipeline, model), make_options(options))
    if isinstance(model, ExportedProgram):
        _no_examples(args, kwargs)
        if inplace:
            raise UsageError("an ExportedProgram is never rewritten in place: use what rewrite() returns")
        return rewrite_exported(model, make_options(options))
    return rewrite_module(cast(nn.Module, model), args, kwargs, make_options(options), inplace=inplace)


def restore(model: Restorable) -> Restorable:
    """Undo ``rewrite(model, inplace=True)``, or ``rewrite(pipeline)``; returns the model or pipeline.

    Raises UsageError if it is not rewritten.
    """
    from .module import restore_module
    from .pipeline import is_pipeline, restore_pipeline

    if is_pipeline(model):
        restore_pipeline(cast(Pipeline, model))
    else:
        restore_module(cast(nn.Module, model))
    return model


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
        _no_examples(args, kwargs)
        # its tensors are fake already, and the program itself is not changed
        report: Report = rewrite_exported(model, make_options(options)).report  # type: ignore[attr-defined]
        report.predicted = True
        return report
    return analyze_module(model, args, kwargs, make_options(options))


def _no_examples(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> None:
    if args or kwargs:
        raise UsageError("an ExportedProgram has its own example inputs: give none")


def compile_report(*, reset: bool = False) -> Report:
    """What ``torch.compile(model, backend="fxrewrite")`` has found in this process, over all models.

    A graph that is compiled again, for other shapes, counts once. With ``reset`` the next report
    starts anew; the one returned stays as it is. The log of it: ``TORCH_LOGS="+fxrewrite"``.
    """
    from .backend import take_report

    return take_report(reset=reset)


__all__ = ["analyze", "compile_report", "restore", "rewrite"]
