"""The command line: what it prints, where, and with which exit code."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import logging
import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner

import fxrewrite
from fxrewrite.cli import main, run
from fxrewrite.cli.versions import version_of
from fxrewrite.errors import CaptureError
from fxrewrite.report import Report
from fxrewrite.target import Target

from .report.samples import transformer
from .support.command_line import environment, fails, folder_of_models, sites

STAND_IN = "import fxrewrite; from fxrewrite.report import Report; fxrewrite.analyze = lambda *_: Report()"

STAND_IN_SITES = (
    "import fxrewrite; from fxrewrite.report import Capture, Report, Site; fxrewrite.analyze = lambda *_: "
    "Report([Capture('g0', 1, [Site('g0.0', 'linear', 'matched', 'Linear', implementation='avx2')])])"
)


@pytest.fixture(autouse=True)
def _models(tmp_path: Path) -> Iterator[None]:
    with folder_of_models(tmp_path):
        yield


def script(*arguments: str, code: str = "") -> list[str]:
    """The command line in an interpreter of its own, after ``code``."""
    return [
        sys.executable,
        "-c",
        f"{code}\nfrom fxrewrite.cli import main\nmain({list(arguments)!r}, 'fxrewrite')",
    ]


def run_process(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run to the end, with what it printed."""
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment())


# What it prints


def test_the_table_goes_to_stdout():
    result = sites("models.py:build")
    assert result.exit_code == 0
    assert result.stdout.startswith("13 sites found: 9 matched, 4 rejected")
    assert "sdpa: 3 of 3 matched" in result.stdout
    assert result.stderr == ""


def test_sections_by_module():
    assert "transformer_blocks.*: 9 of 12 matched" in sites("models.py:build", "--by", "module").stdout


def test_json_is_the_report():
    result = sites("models.py:build", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == transformer(3).to_dict()


def test_one_site_explained():
    result = sites("models.py:build", "--explain", "s4")
    assert result.exit_code == 0
    assert result.stdout.startswith("s4  sdpa  matched  (rule Sdpa)\n")
    assert "checked at run time: s0 == 1" in result.stdout


def test_all_sites_of_a_module_explained():
    result = sites("models.py:build", "--explain", "transformer_blocks.1.attn.to_q")
    assert [line.split()[0] for line in result.stdout.splitlines() if line.startswith("s")] == ["s5"]


def test_markdown():
    result = sites("models.py:build", "--markdown", "--by", "module")
    assert result.exit_code == 0
    assert result.stdout.startswith("**13 sites found: 9 matched, 4 rejected")
    assert "#### transformer\\_blocks.\\*: 9 of 12 matched" in result.stdout


def test_a_page_is_written_beside_the_table(tmp_path):
    result = sites("models.py:build", "--html", "page.html")
    assert result.exit_code == 0
    assert result.stdout.startswith("13 sites found")
    assert result.stderr == "fxrewrite: wrote page.html\n"
    assert "<title>models.py:build - fxrewrite</title>" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--html", "absent/page.html"], ["--html 'absent/page.html' cannot be written: No such file"]),
        (["--html", "."], ["--html '.' cannot be written: Is a directory"]),
        (["--explain", "s99"], ["no site or module 's99': ids go from s0 to s12"]),
        (["--json", "--markdown"], ["--json and --markdown exclude each other"]),
        (["--json", "--explain", "s1"], ["--json and --explain exclude each other"]),
        (["--dtype"], ["Option '--dtype' requires an argument"]),
    ],
)
def test_options_that_do_not_go(options, parts):
    fails(sites("models.py:build", *options), *parts)


def test_a_file_that_cannot_be_written_is_told_before_the_analysis():
    result = sites(
        "models.py:build", "--html", "absent/page.html", analyze=raising(AssertionError("analysed"))
    )
    fails(result, "--html 'absent/page.html' cannot be written")


def test_a_file_that_cannot_be_written_after_all(monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(sys.modules["fxrewrite.cli.sites"], "open", full, raising=False)
    fails(
        sites("models.py:build", "--html", "page.html"), "--html 'page.html' cannot be written: No space left"
    )


@pytest.mark.parametrize("there", [False, True])
def test_a_file_that_may_not_be_written(monkeypatch, there):
    if there:
        Path("page.html").touch()
    real = os.access  # a test may run as root, who may do everything
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and real(path, mode))
    fails(
        sites("models.py:build", "--html", "page.html"),
        "--html 'page.html' cannot be written: Permission denied",
    )


def test_no_colours_where_no_terminal_is_or_none_are_wanted():
    assert "\x1b" not in sites("models.py:build").stdout
    shown, terminal = pty.openpty()
    done = subprocess.Popen(
        script("sites", "models.py:build", code=STAND_IN_SITES),
        stdout=terminal,
        stderr=subprocess.DEVNULL,
        env={**environment(), "NO_COLOR": "1"},
    )
    os.close(terminal)
    text = b"".join(chunks(shown)).decode()
    assert done.wait(timeout=120) == 0
    os.close(shown)
    assert "1 site found" in text
    assert "\x1b[32m" not in text


def test_notes_of_an_uncapturable_part_are_printed():
    result = sites("models.py:build", analyze=lambda *_: Report(notes=["experts: calls item()"]))
    assert result.exit_code == 0
    assert result.stdout == "No sites found.\n\nNotes:\n - experts: calls item()\n"


def test_what_the_target_gives_is_what_is_analysed():
    seen = []

    def analyze(*given):
        seen.append((given, torch.is_grad_enabled()))
        return Report()

    assert sites("models.py:list_args", analyze=analyze).exit_code == 0
    ((model, args, kwargs), gradients) = seen[0]
    assert type(model).__name__ == "Tiny"
    assert [tuple(a.shape) for a in args] == [(2,)]
    assert kwargs == {"scale": 2.0}
    assert not gradients


def test_the_collector_of_garbage_is_left_as_it_was():
    before = gc.get_threshold()
    assert sites("models.py:build").exit_code == 0
    assert sites("models.py:no_such").exit_code != 0
    assert gc.get_threshold() == before


@pytest.mark.parametrize("arguments", [["--version"], ["scan"]])
def test_the_console_script_ends_without_a_last_collection(arguments, monkeypatch):
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    monkeypatch.setattr("sys.argv", ["fxrewrite", *arguments])
    with pytest.raises(SystemExit) as end:
        run()
    assert frozen == [True]
    assert end.value.code == (0 if arguments == ["--version"] else 2)


def test_version():
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("fxrewrite ")
    assert f"(torch {torch.__version__})" in result.stdout


def test_help_documents_target_and_exit_codes():
    result = sites("--help")
    assert result.exit_code == 0
    for part in ("path/to/file.py:callable", "Exit code: 0 fine, 1", "--fail-on rejected[:KIND]"):
        assert part in result.stdout


# --fail-on


@pytest.mark.parametrize(
    ("conditions", "code", "said"),
    [
        (["rejected"], 1, "fxrewrite: --fail-on rejected: 4 sites rejected\n"),
        (["rejected:linear"], 1, "fxrewrite: --fail-on rejected:linear: 4 sites rejected\n"),
        (["rejected:sdpa"], 0, ""),
        (["rejected:sdpa", "rejected:linear"], 1, "fxrewrite: --fail-on rejected:linear: 4 sites rejected\n"),
        (["rejected:fp8_matmul", "rejected:linear_attention"], 0, ""),
    ],
)
def test_fail_on(conditions, code, said):
    options = [part for condition in conditions for part in ("--fail-on", condition)]
    result = sites("models.py:build", "--json", *options)
    assert (result.exit_code, result.stderr) == (code, said)
    assert json.loads(result.stdout)["schema"] == 1


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        (
            "rejected:conv",
            "names an unknown kind: expected one of sdpa, linear, fp8_matmul, linear_attention",
        ),
        ("rejected:", "names an unknown kind"),
        ("matched", "is unknown: expected rejected or rejected:KIND"),
    ],
)
def test_fail_on_with_an_unknown_condition(condition, said):
    fails(sites("models.py:build", "--fail-on", condition), repr(condition), said)


# Bad usage


def test_unknown_option():
    fails(sites("models.py:build", "--jsn"), "--jsn", "sites --help")


def test_unknown_grouping():
    fails(sites("models.py:build", "--by", "size"), "'size'", "'family', 'module'")


def test_no_target():
    fails(sites(), "TARGET", "sites --help")


def test_two_targets():
    fails(sites("models.py:build", "models.py:build"), "unexpected extra argument")


def test_no_command():
    fails(CliRunner().invoke(main, []), "Missing command", "--help")


def test_unknown_command():
    fails(CliRunner().invoke(main, ["scan"]), "'scan'", "--help")


@pytest.mark.parametrize("version", ["2.10.1", "1.13.0+cu117", "unknown"])
def test_unsupported_torch(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    fails(
        sites("models.py:build"),
        f"torch {version} is too old",
        "needs 2.11 or newer",
        "pip install 'torch>=2.11'",
    )


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "3.0.0a0+git123"])
def test_supported_torch(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    assert sites("models.py:build").exit_code == 0


def test_a_broken_torch(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch")
    fails(
        sites("models.py:build"), "torch is installed but cannot be imported (libgomp.so.1: ", "2.11 or newer"
    )


# Models that cannot be analysed


def raising(error: Exception) -> Callable[..., Report]:
    """An analysis that fails."""

    def analyze(*_: object) -> Report:
        raise error

    return analyze


def test_a_model_that_cannot_be_captured():
    result = sites("models.py:build", analyze=raising(CaptureError("Linear calls item():\n  trace it first")))
    fails(result, "error: models.py:build: Linear calls item(): trace it first\n")


def test_an_analysis_that_fails_unexpectedly():
    result = sites("models.py:build", analyze=raising(KeyError("node")))
    fails(result, "models.py:build cannot be analysed: KeyError: 'node' (at ", "test_cli.py:", "--debug")
    assert "example inputs" not in result.stderr


@pytest.mark.parametrize("error", [TypeError("no x"), CaptureError("Tiny cannot be captured: no x")])
def test_an_analysis_that_fails_without_inputs(error):
    result = sites("models.py:hooked", analyze=raising(error))
    fails(result, "no x", "it gave no example inputs: if they are needed, return (model, args, kwargs)")


def logging_and_failing(*_: object) -> Report:
    """An analysis that logs its failure, as torch does."""
    logging.getLogger("torch._subclasses").error("a long trace")
    raise CaptureError("no graph")


def test_the_log_of_a_failure_is_shown_with_debug_only(caplog):
    fails(sites("models.py:build", analyze=logging_and_failing), "no graph")
    assert caplog.messages == []
    sites("models.py:build", "--debug", analyze=logging_and_failing)
    assert caplog.messages == ["a long trace"]


def test_inputs_that_do_not_fit_in_a_real_analysis():
    fails(CliRunner().invoke(main, ["sites", "models.py:wrong_shape"]), "models.py:wrong_shape: ", "Linear")


@pytest.mark.parametrize("target", ["models.py:raises", "absent.py:build", "models.py:nothing"])
def test_debug_shows_the_traceback(target):
    result = sites(target, "--debug")
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("fxrewrite: error: ")
    if target == "models.py:raises":
        assert "ValueError: no weights at hub\nsecond line" in result.stderr


def test_an_interruption_is_no_verdict():
    result = sites("models.py:build", analyze=raising(KeyboardInterrupt()))  # type: ignore[arg-type]
    assert result.exit_code == 130
    assert result.stderr.endswith("fxrewrite: interrupted\n")


def test_without_stand_alone_mode_the_code_is_returned(monkeypatch):
    monkeypatch.setattr(fxrewrite, "analyze", lambda *_: transformer(1), raising=False)
    assert main.main(["sites", "models.py:build", "--fail-on", "rejected"], standalone_mode=False) == 1
    assert isinstance(main, click.Group)


# In a process of its own


def test_json_has_stdout_for_itself():
    done = run_process(script("sites", "models.py:noisy", "--json", code=STAND_IN))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == Report().to_dict()
    for part in (
        "printed by the target",
        "written by native code",
        "echoed by a child",
        "warned by the target",
    ):
        assert part in done.stderr


def test_an_error_of_a_real_run_is_one_line():
    done = run_process(script("sites", "models.py:raises"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fxrewrite: error: models.py:raises raised ValueError")
    assert done.stderr.count("\n") == 1


def test_a_missing_torch_is_named_in_one_line():
    code = "import sys; sys.modules['torch'] = None"
    done = run_process(script("sites", "models.py:build", code=code))
    said = "fxrewrite: error: module 'torch' is not installed, and fxrewrite needs torch 2.11 or newer: pip"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


def test_progress_is_shown_on_a_terminal():
    shown, terminal = pty.openpty()
    command = script("sites", "models.py:build", code=STAND_IN)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, env=environment()) as process:
        os.close(terminal)
        text = b"".join(chunks(shown)).decode()
        assert process.communicate(timeout=120) == (b"No sites found.\n", None)
    os.close(shown)
    assert process.returncode == 0
    assert "Loading models.py:build" in text


def chunks(descriptor: int) -> Iterator[bytes]:
    """What comes out of a pseudo-terminal until its other side is closed."""
    with contextlib.suppress(OSError):
        while chunk := os.read(descriptor, 4096):
            yield chunk


def test_a_reader_that_leaves_early():
    command = " ".join(map(shlex.quote, script("rules")))
    done = run_process(["bash", "-c", f"{command} | true"])
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fault_of_ours_has_its_traceback_and_an_exit_code_of_its_own(monkeypatch):
    def faulty(*_, **__):
        raise KeyError("group")

    monkeypatch.setattr(sys.modules["fxrewrite.cli.sites"], "_text", faulty)
    result = sites("models.py:build")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "Traceback (most recent call last)" in result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("fxrewrite: error: a fault of fxrewrite: KeyError: 'group'; please report it")


def test_a_component_that_cannot_be_captured_leaves_the_others(monkeypatch):
    parts = [Target(torch.nn.Linear(2, 2), name=name) for name in ("good", "bad")]
    monkeypatch.setattr("fxrewrite.cli.target.load", lambda *_, **__: parts)

    def analyze(model, *_):
        if model is parts[1].model:
            raise CaptureError("Linear cannot be captured: no graph")
        return transformer(1)

    result = sites("pipe", analyze=analyze)
    assert result.exit_code == 0, result.output
    assert "bad: Linear cannot be captured: no graph" in result.stdout
    assert "good.transformer_blocks" in result.stdout


def test_a_package_that_is_not_installed_has_no_version():
    assert version_of("no-such-package-of-ours") == "not installed"
