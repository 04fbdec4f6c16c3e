"""What the commands that take a TARGET share: its options, loading and analysing it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click
from rich.markup import escape

from ..errors import FxrewriteError, TargetError, require_torch
from ..report import JoinedReport, Report
from ..streams import progress, quiet_logs, stdout_to_stderr
from ..target import DEBUG, Target, describe, load
from ..target.inputs import FORM, parse_inputs
from ..target.materialise import materialise

Command = TypeVar("Command", bound=Callable[..., Any])

_FORMS = """\b
    TARGET is one of
      package.module:callable or path/to/file.py:callable, a callable without
        arguments that returns a model, (model, args) or (model, args, kwargs)
      model.pt2, as torch.export.save writes it
      a folder with a config.json, or that file: the class of diffusers or
        transformers that it names is built, without weights
      a folder with a model_index.json: a diffusers pipeline, all its models"""


def describes_target(command: Command) -> Command:
    """Decorator: {TARGET} in the command's help says what a TARGET may be."""
    command.__doc__ = (command.__doc__ or "").replace("{TARGET}", _FORMS)
    return command


def takes_target(command: Command) -> Command:
    """Decorator: the command gets ``target``, ``inputs``, ``dtype`` and ``debug``."""
    for decorate in (
        click.option("--debug", is_flag=True, help="Show the traceback of an error."),
        click.option(
            "--dtype", metavar="DTYPE", help="Of a model from a config.json; default: what it says, or bf16."
        ),
        click.option("--input", "inputs", multiple=True, metavar="NAME=DTYPE[SIZES]", help=f"{FORM}."),
        click.argument("target"),
    ):
        command = decorate(command)
    return command


def load_targets(text: str, inputs: Sequence[str], dtype: str | None, device: str = "meta") -> list[Target]:
    """The models that TARGET names. What loading them prints goes to stderr."""
    with stdout_to_stderr(), progress(f"Loading {escape(text)}"):
        require_torch()
        return load(text, parse_inputs(inputs), dtype, device)


def one_target(text: str, inputs: Sequence[str], dtype: str | None) -> Target:
    """The model that TARGET names, with values to run on; raises `TargetError` where it names several."""
    targets = load_targets(text, inputs, dtype, device="cpu")
    models = [target for target in targets if target.model is not None]
    if not models:
        raise TargetError(f"{text}: {targets[0].name}: {targets[0].notes[0]}")
    if len(models) > 1:
        names = ", ".join(target.name for target in models)
        raise TargetError(f"{text} has several models ({names}): name the folder of one of them")
    with stdout_to_stderr(), progress("Filling in random numbers"):
        try:
            return materialise(models[0])
        except (MemoryError, RuntimeError) as error:  # torch raises either where memory is short
            raise TargetError(f"{text} cannot be given values: {describe(error)}; {DEBUG}") from error


@contextlib.contextmanager
def running(text: str, what: str, debug: bool) -> Iterator[Callable[[str], None]]:
    """Work on a TARGET's model inside: ``what`` is shown, and a failure is told in one line.

    Gives a function that says how far the work is.
    """
    logs = contextlib.nullcontext() if debug else quiet_logs()
    try:
        with stdout_to_stderr(), logs, progress(what) as tell:
            yield tell
    except FxrewriteError as error:
        raise FxrewriteError(f"{text}: {error}") from error
    except Exception as error:
        raise FxrewriteError(f"{text} cannot be run: {describe(error)}; {DEBUG}") from error


def analyse(targets: Sequence[Target], text: str, debug: bool) -> Report:
    """The report of all targets together, from a dry run of each."""
    reports = {}
    for target in targets:
        if target.model is None:
            report = Report(predicted=True)
        else:
            what = (
                f"{target.name} ({type(target.model).__name__})"
                if target.name
                else type(target.model).__name__
            )
            logs = contextlib.nullcontext() if debug else quiet_logs()
            with stdout_to_stderr(), logs, progress(f"Analysing {escape(what)}"):
                report = _analyse(target, text)
        for note in reversed(target.notes):
            report.notes.insert(0, note)
        reports[target.name] = report
    return JoinedReport(reports) if len(reports) > 1 or "" not in reports else reports[""]


def _analyse(target: Target, text: str) -> Report:
    import torch

    from fxrewrite import analyze

    given = bool(target.args or target.kwargs)
    advice = "" if given else "; it gave no example inputs: if they are needed, return (model, args, kwargs)"
    try:
        with torch.no_grad():
            return analyze(target.model, target.args, target.kwargs)
    except FxrewriteError as error:
        if target.name:
            return Report(notes=[str(error)], predicted=True)
        raise FxrewriteError(f"{text}: {error}{advice}") from error
    except Exception as error:
        raise FxrewriteError(f"{text} cannot be analysed: {describe(error)}{advice}; {DEBUG}") from error
