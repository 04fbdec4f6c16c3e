"""The export door: an ExportedProgram in, an ExportedProgram out, to be saved, loaded or packaged."""

from __future__ import annotations

import copy

import torch

from . import capture
from .backend import default_rules
from .report import Report
from .rewriting import Options, rewrite_graph


def rewrite_exported(program: torch.export.ExportedProgram, options: Options) -> torch.export.ExportedProgram:
    """See ``fxrewrite.rewrite``. ``program`` is not changed; the result has ``.report``.

    The result is for inference: the operators that replace sites have no gradients. A process that
    loads it from a file must import fxrewrite first.
    """
    rewritten = capture.from_exported(copy.copy(program))
    report = Report()
    with capture.renaming_outputs(rewritten):
        found = rewrite_graph(
            capture.canonical_graph(rewritten.graph_module),
            default_rules(options),
            options,
            "g0",
            grad_enabled=False,
        )
    report.add(found)
    rewritten.report = report  # type: ignore[attr-defined]
    return rewritten
