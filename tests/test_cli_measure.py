"""``fxrewrite verify`` and ``fxrewrite bench``."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from fxrewrite.cli import main
from fxrewrite.errors import CaptureError
from fxrewrite.measure import verify as verifying
from fxrewrite.target import Target
from fxrewrite.target.materialise import materialise
from tests.support.graphs import any_kernel

from .support.command_line import fails, folder_of_models

__all__ = ["any_kernel"]


@pytest.fixture(autouse=True)
def _models(tmp_path: Path) -> Iterator[None]:
    torch.compiler.reset()
    with folder_of_models(tmp_path):
        yield


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments], env={"COLUMNS": "150"})


@pytest.mark.usefixtures("any_kernel")
@pytest.mark.parametrize("name", ["build", "on_meta", "exported_linear"])
def test_verify(name):
    result = run("verify", f"models.py:{name}")
    assert result.exit_code == 0, result.output
    first, header, row = result.stdout.splitlines()[:3]
    assert (
        first == "1 replaced sites run: 1 within 1.25 times the original's RMS error against float64, 0 not."
    )
    assert header.split() == ["site", "original", "ours", "ratio", "where,", "implementation"]
    assert row.startswith("g0.0 linear")


@pytest.mark.usefixtures("any_kernel")
def test_verify_fails_where_a_site_does(monkeypatch):
    monkeypatch.setattr(verifying, "ALLOWED", -1.0)
    result = run("verify", "models.py:build")
    assert result.exit_code == 1
    assert "0 within" in result.stdout


@pytest.mark.parametrize("command", ["verify", "bench"])
@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("models.py:absent", ["'models.py' has no 'absent'"]),
        ("absent.pt2", ["file 'absent.pt2' does not exist"]),
        ("models.py:wrong_shape", ["models.py:wrong_shape cannot be run: "]),
    ],
)
def test_targets_that_do_not_run(command, target, parts):
    fails(run(command, target), *parts)


def test_nothing_to_verify():
    fails(run("verify", "models.py:no_kwargs"), "models.py:no_kwargs: no sites were found")


def test_several_models(monkeypatch):
    both = [Target(torch.nn.Linear(2, 2), name=name) for name in ("a", "b")]
    left = Target(None, name="c", notes=("why",))
    monkeypatch.setattr("fxrewrite.cli.target.load", lambda *_, **__: [*both, left])
    fails(run("verify", "pipe"), "pipe has several models (a, b): name the folder of one of them")
    monkeypatch.setattr("fxrewrite.cli.target.load", lambda *_, **__: [left])
    fails(run("verify", "pipe"), "pipe: c: why")


@pytest.mark.usefixtures("any_kernel")
def test_bench():
    result = run("bench", "models.py:build", "--rounds", "2", "--no-inductor")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("End to end, 2 rounds on ")
    assert lines[1].split() == ["median", "least", "spread", "x", "eager", "error"]
    assert [line.split()[0] for line in lines[2:4]] == ["eager", "fxrewrite"]
    assert "Sites, the longest first (1 of 1 sites matched" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rounds", "0"], "'--rounds': 0 is not in the range x>=1"),
        (["--rounds", "x"], "'x' is not a valid"),
    ],
)
def test_bench_usage(arguments, said):
    fails(run("bench", "models.py:build", *arguments), said)


def test_a_plot_without_matplotlib(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "matplotlib" else real(n, *a))
    fails(
        run("bench", "models.py:build", "--plot", "x.png"), "--plot needs matplotlib: pip install matplotlib"
    )


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("absent/x.png", "--plot 'absent/x.png' cannot be written: No such file or directory"),
        ("folder", "--plot 'folder' cannot be written: Is a directory"),
        ("x.bmp2", "--plot 'x.bmp2': a file ending in .bmp2 is unknown: expected .png, .svg or .pdf"),
        ("x", "--plot 'x': the file's name has no ending: expected .png"),
    ],
)
def test_a_plot_that_cannot_be_written_is_told_before_anything_is_measured(path, said, monkeypatch):
    pytest.importorskip("matplotlib")
    Path("folder").mkdir()
    monkeypatch.setattr(sys.modules["fxrewrite.cli.bench"], "one_target", lambda *_: pytest.fail("loaded"))
    fails(run("bench", "models.py:build", "--plot", path), said)


def test_a_model_that_there_is_no_memory_for(monkeypatch):
    def full(target):
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr("fxrewrite.cli.target.materialise", full)
    fails(
        run("verify", "models.py:on_meta"),
        "models.py:on_meta cannot be given values: RuntimeError: can't all",
    )


def test_parameters_without_elements_get_values():
    model = torch.nn.ParameterList([torch.empty(0, 3, device="meta"), torch.empty(2, 0, device="meta")])
    filled = materialise(Target(model)).model
    assert [parameter.device.type for parameter in filled.parameters()] == ["cpu", "cpu"]


@pytest.mark.parametrize("command", ["verify", "bench"])
def test_a_model_of_which_nothing_is_captured(command, monkeypatch):
    def refuse(*_, **__):
        raise CaptureError("Linear cannot be captured: no graph")

    monkeypatch.setattr(f"fxrewrite.measure.{command}.visit_sites", refuse)
    arguments = ["--rounds", "1", "--no-inductor"] if command == "bench" else []
    said = "models.py:build: Linear cannot be captured: no graph"
    fails(run(command, "models.py:build", *arguments), said)


@pytest.mark.usefixtures("any_kernel")
def test_verify_shows_the_worst_and_all_on_request(tmp_path):
    (tmp_path / "deep.py").write_text(
        "import torch\nfrom torch import nn\n"
        "build = lambda: (nn.Sequential(*(nn.Linear(4, 4) for _ in range(22))).eval(), (torch.ones(2, 4),))\n"
    )
    shown = run("verify", "deep.py:build").stdout
    assert shown.count(" linear ") == 20
    assert "2 better ones are not shown (--all)." in shown
    assert run("verify", "deep.py:build", "--all").stdout.count(" linear ") == 22


@pytest.mark.usefixtures("any_kernel")
def test_a_plot_is_written():
    pytest.importorskip("matplotlib")
    result = run("bench", "models.py:build", "--rounds", "2", "--no-inductor", "--plot", "times.png")
    assert result.exit_code == 0, result.output
    assert result.stderr == "fxrewrite: wrote times.png\n"
    assert Path("times.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("any_kernel")
def test_a_plot_that_cannot_be_written_after_all(monkeypatch):
    figure = pytest.importorskip("matplotlib.figure")

    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(figure.Figure, "savefig", full)
    result = run("bench", "models.py:build", "--rounds", "1", "--no-inductor", "--plot", "times.png")
    fails(result, "--plot 'times.png' cannot be written: No space left on device")
