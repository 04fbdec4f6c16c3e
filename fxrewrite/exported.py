"""The export door: an ExportedProgram in, an ExportedProgram out, to be saved, loaded or packaged."""

from __future__ import annotations

import copy
import logging

import torch

from . import capture
from .backend import default_rules
from .errors import UsageError, first_line, is_strict
from .guards.facts import Exported, declare_exported
from .report import Report
from .rewriting import Options, rewrite_graph


def rewrite_exported(program: torch.export.ExportedProgram, options: Options) -> torch.export.ExportedProgram:
    """See ``fxrewrite.rewrite``. ``program`` is not changed; the result has ``.report``.

    The result is for inference: the operators that replace sites have no gradients. A process that
    loads it from a file must import fxrewrite first. Raises UsageError for ``on_unknown="guard"``: nothing
    checks a guard of a program that is exported.
    """
    if options.on_unknown == "guard":
        raise UsageError(
            "on_unknown='guard' does not go with an ExportedProgram, which checks no guards when it runs: "
            "use 'dispatch' or 'reject'"
        )
    rewritten = capture.from_exported(copy.copy(program))
    environment = capture.shape_env_of_graph(rewritten.graph_module)
    if environment is not None:
        declare_exported(environment, Exported(*capture.enforced_sizes(rewritten)))
    report = Report()
    try:
        with capture.renaming_outputs(rewritten):
            found = rewrite_graph(
                capture.canonical_graph(rewritten.graph_module),
                default_rules(options),
                options,
                "g0",
                grad_enabled=False,
            )
        report.add(found)
    except Exception as error:  # a fault of ours must not be the program's: it stays as it is, and is told
        if is_strict():
            raise
        logging.getLogger("fxrewrite").warning("a program stays as it is", exc_info=error)
        report.note(
            f"the program stays as it is, by a fault of fxrewrite: {type(error).__name__}: "
            f"{first_line(error)} (FXREWRITE_STRICT=1 raises it)"
        )
        rewritten = capture.from_exported(copy.copy(program))
    rewritten.report = report  # type: ignore[attr-defined]
    return rewritten
