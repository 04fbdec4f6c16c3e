"""Pipelines: objects that hold several models in ``.components``, as those of diffusers do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

from .errors import UsageError
from .module import is_rewritten, restore_module, rewrite_module
from .report import JoinedReport, Report
from .rewriting import Options


class Pipeline(Protocol):
    """Anything with ``.components``: models, and other parts, by name."""

    @property
    def components(self) -> Mapping[str, Any]: ...


def is_pipeline(value: Any) -> bool:
    """Is it no model itself, but holds some?"""
    return not isinstance(value, nn.Module) and isinstance(getattr(value, "components", None), Mapping)


def rewrite_pipeline(pipeline: Pipeline, options: Options) -> Report:
    """See ``fxrewrite.rewrite``: each model in place, and one report of all, which grows as they run."""
    models = _models(pipeline)
    for name, model in models.items():
        if is_rewritten(model):
            raise UsageError(f"{name} is rewritten already: call fxrewrite.restore(pipeline) first")
    for model in models.values():
        rewrite_module(model, (), None, options, inplace=True)
    reports = {name: model.forward.report for name, model in models.items()}
    for name, part in pipeline.components.items():
        if isinstance(part, torch.jit.ScriptModule):
            reports[name] = Report(notes=["a ScriptModule, which cannot be captured, runs as it is"])
    return JoinedReport(reports)


def restore_pipeline(pipeline: Pipeline) -> Pipeline:
    """See ``fxrewrite.restore``."""
    rewritten = [model for model in _models(pipeline).values() if is_rewritten(model)]
    if not rewritten:
        raise UsageError(f"{type(pipeline).__name__} is not rewritten: there is nothing to restore")
    for model in rewritten:
        restore_module(model)
    return pipeline


def _models(pipeline: Pipeline) -> dict[str, Any]:
    """The pipeline's models by name, each once, without those that are TorchScript."""
    found: dict[int, tuple[str, nn.Module]] = {}
    for name, part in pipeline.components.items():
        if isinstance(part, nn.Module) and not isinstance(part, torch.jit.ScriptModule):
            found.setdefault(id(part), (name, part))
    if not found:
        raise UsageError(
            f"{type(pipeline).__name__}.components has no model: expected one nn.Module at least"
        )
    return dict(found.values())
