"""TARGETs that are saved programs."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import fxrewrite
from fxrewrite.cli import main

from .support.command_line import fails, folder_of_models


@pytest.fixture(autouse=True)
def _models(tmp_path: Path) -> Iterator[None]:
    with folder_of_models(tmp_path):
        yield


def sites(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["sites", *arguments])


def save():
    program = torch.export.export(nn.Linear(64, 32).eval(), (torch.randn(2, 64),))
    torch.export.save(program, "linear.pt2")


def test_a_saved_program_is_scanned():
    save()
    result = sites("linear.pt2")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("1 site found")


def test_one_that_is_rewritten_already_loads():
    program = torch.export.export(nn.Linear(64, 32).eval(), (torch.randn(2, 64),))
    torch.export.save(fxrewrite.rewrite(program), "fast.pt2")
    assert sites("fast.pt2").exit_code == 0


def test_no_such_file():
    fails(sites("absent.pt2"), "file 'absent.pt2' does not exist; the current folder is ")


def test_another_file():
    Path("text.pt2").write_text("weights")
    fails(sites("text.pt2"), "text.pt2 is no program saved by torch.export.save: it is no archive")


def test_a_file_that_was_cut_off():
    save()
    whole = Path("linear.pt2").read_bytes()
    Path("short.pt2").write_bytes(whole[: len(whole) // 2])
    fails(sites("short.pt2"), "short.pt2 is no program", "or its end is missing; save it again")


def test_a_program_of_another_version():
    save()
    with zipfile.ZipFile("linear.pt2") as old, zipfile.ZipFile("newer.pt2", "w") as new:
        for name in old.namelist():
            new.writestr(name, b"99" if name.endswith("archive_version") else old.read(name))
    result = sites("newer.pt2")
    fails(
        result, "newer.pt2 cannot be loaded by torch", "version 99", "this torch or an older one", "--debug"
    )
    assert "Traceback" not in result.output


def test_a_compiled_package():
    with zipfile.ZipFile("compiled.pt2", "w") as archive:
        archive.writestr("compiled/data/aotinductor/model/model.so", b"")
    fails(sites("compiled.pt2"), "compiled already (an AOTInductor package)", "torch.export.save")


def test_inputs_do_not_go_with_it():
    fails(sites("linear.pt2", "--input", "x=f32[1]"), "--input x does not go with it", "has its own")
