"""The command line under test: a folder of models, a run with a stand-in for the analysis."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import fxrewrite
from fxrewrite.cli import main
from fxrewrite.report import Report

from ..report.samples import transformer

MODELS = """
    import torch
    from torch import nn

    def build():
        return nn.Linear(4, 4).eval(), (torch.randn(2, 4),)

    class Tiny(nn.Module):
        def forward(self, x, scale=1.0):
            return x * scale

    class Free(nn.Module):
        def forward(self):
            return torch.ones(2)

    class Pipeline:
        def __init__(self):
            self.name, self.transformer, self.vae = "pipe", Tiny(), Tiny()

    x = torch.randn(2)
    model = Tiny()
    number = 3
    no_inputs = Tiny
    no_inputs_needed = Free
    nothing = lambda: None
    a_list = lambda: [Tiny(), (x,)]
    empty = lambda: ()
    four = lambda: (Tiny(), (x,), {}, 1)
    swapped = lambda: ((x,), Tiny())
    pipeline = Pipeline
    bare_tensor = lambda: (Tiny(), x)
    dict_as_args = lambda: (Tiny(), {"x": x})
    list_as_kwargs = lambda: (Tiny(), (x,), [x])
    too_many = lambda: (Tiny(), (x, 1.0, x))
    misnamed = lambda: (Tiny(), (x,), {"scael": 1.0})
    list_args = lambda: (Tiny(), [x], {"scale": 2.0})
    no_kwargs = lambda: (Tiny(), (x,), None)
    wrong_shape = lambda: (nn.Linear(4, 4), (torch.randn(2, 5),))
    on_meta = lambda: (nn.Linear(4, 4, device="meta"), (torch.empty(2, 4, device="meta"),))

    def exported():
        return torch.export.export(Tiny(), (x,))

    def exported_linear():
        return torch.export.export(nn.Linear(4, 4).eval(), (torch.randn(2, 4),))

    def hooked():
        tiny = Tiny()
        tiny.register_forward_pre_hook(lambda module, args: (x,))
        return tiny

    def needs(config):
        return Tiny()

    def raises():
        raise ValueError("no weights at hub\\nsecond line")

    def raises_in_library():
        return nn.Linear(4, -1)

    def exits():
        raise SystemExit("usage: models.py")

    def noisy():
        import os, subprocess, warnings
        print("printed by the target")
        os.write(1, b"written by native code\\n")
        subprocess.run(["echo", "echoed by a child"], check=True)
        warnings.warn("warned by the target")
        return build()
"""


@contextlib.contextmanager
def folder_of_models(folder: Path) -> Iterator[None]:
    """Run inside ``folder``, which has ``models.py``; forget what was imported from there."""
    (folder / "models.py").write_text(textwrap.dedent(MODELS))
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


def line_of(text: str) -> str:
    """The place of the line of ``models.py`` that has ``text``."""
    lines = textwrap.dedent(MODELS).splitlines()
    return f"models.py:{next(number for number, line in enumerate(lines, 1) if text in line)}"


def sites(*arguments: str, analyze: Callable[..., Report] = lambda *_: transformer(3)) -> Result:
    """``fxrewrite sites`` with a stand-in for the analysis."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fxrewrite, "analyze", analyze, raising=False)
        return CliRunner().invoke(main, ["sites", *arguments])


def fails(result: Result, *parts: str) -> None:
    """The result is one line of error with all of ``parts``, exit code 2, and nothing on stdout."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("fxrewrite: error: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


def environment() -> dict[str, str]:
    """The environment of a process that finds this fxrewrite from any folder."""
    root = str(Path(fxrewrite.__path__[0]).parent)
    return {**os.environ, "PYTHONPATH": root, "TERM": "xterm"}
