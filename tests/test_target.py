"""TARGET: what is accepted, and what each mistake is answered with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .support.command_line import fails, folder_of_models, line_of, sites

FORMS = "expected package.module:callable or path/to/file.py:callable"


@pytest.fixture(autouse=True)
def _models(tmp_path: Path) -> Iterator[None]:
    with folder_of_models(tmp_path):
        yield


@pytest.mark.parametrize(
    "name",
    ["build", "no_inputs_needed", "list_args", "no_kwargs", "on_meta", "hooked"],
)
def test_accepted_targets(name):
    assert sites(f"models.py:{name}").stderr == ""
    assert sites(f"models:{name}").exit_code == 0


def test_a_file_sees_its_neighbours_and_the_current_folder_is_importable(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "neighbour.py").write_text("from torch import nn\nbuild = lambda: nn.Flatten(), (3,)[0:0]\n")
    (package / "near.py").write_text("import neighbour\nbuild = lambda: (neighbour.build[0](), (1,))\n")
    assert sites("package/near.py:build").exit_code == 0
    assert sites(f"{package}/near.py:build").exit_code == 0
    (package / "inside.py").write_text(
        "from . import neighbour\nbuild = lambda: (neighbour.build[0](), (1,))\n"
    )
    assert sites("package.inside:build").exit_code == 0


def test_a_callable_inside_a_class(tmp_path):
    (tmp_path / "nested.py").write_text(
        "from torch import nn\nclass Zoo:\n    @staticmethod\n    def make(): return nn.Identity(), (1,)\n"
    )
    assert sites("nested.py:Zoo.make").exit_code == 0


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("models.py", ["TARGET 'models.py' does not name a callable", FORMS, "models.py:build"]),
        ("models", ["TARGET 'models' does not name a callable", FORMS, "models:build"]),
        ("models.py:", ["TARGET 'models.py:' does not name a callable", "models.py:build"]),
        (":build", ["TARGET ':build' does not name a callable", FORMS]),
        ("absent.py:build", ["file 'absent.py' does not exist", "expected a Python file", "current folder"]),
        ("some/absent:build", ["file 'some/absent' does not exist"]),
        ("./:build", ["file './' is a folder", "expected a Python file"]),
        ("absent:build", ["module 'absent' cannot be imported", "no module 'absent'", FORMS]),
        ("torch.absent.deep:build", ["no module 'torch.absent'", FORMS]),
        ("models.py:biuld", ["'models.py' has no 'biuld'", "did you mean 'build'?"]),
        (
            "models.py:zzz",
            ["'models.py' has no 'zzz'", "expected one of its callables: build, Tiny", ", ...\n"],
        ),
        ("models.py:Pipeline.absent", ["'models.py' has no 'Pipeline.absent'"]),
        ("models.py:number", ["'number' in 'models.py' is not callable but of type int", "returns a model"]),
        ("models.py:model", ["'model' in 'models.py' is a model", "add a function that returns model"]),
        ("models.py:needs", ["'needs' in 'models.py' cannot be called without arguments (required: config)"]),
        (
            "models.py:raises",
            [f"models.py:raises raised ValueError: no weights at hub (at {line_of('ValueError')}); run with"],
        ),
        ("models.py:raises_in_library", ["raised RuntimeError: ", f"(at {line_of('Linear(4, -1)')})"]),
        (
            "models:raises_in_library",
            ["models:raises_in_library raised RuntimeError: ", f"(at {line_of('Linear(4, -1)')})"],
        ),
        (
            "models.py:exits",
            [f"models.py:exits raised SystemExit: usage: models.py (at {line_of('SystemExit')})"],
        ),
        ("models.py:nothing", ["models.py:nothing returned None", "expected a model, (model, args) or"]),
        ("models.py:a_list", ["returned list: expected a model, (model, args) or (model, args, kwargs)"]),
        ("models.py:empty", ["returned a tuple of 0: expected a model"]),
        ("models.py:four", ["returned a tuple of 4: expected a model"]),
        ("models.py:swapped", ["returned a tuple that starts with tuple: expected a model"]),
        ("models.py:pipeline", ["returned Pipeline: ", "return one of its modules: transformer, vae"]),
        ("models.py:bare_tensor", ["args of type Tensor: expected a tuple", "return (model, (x,))"]),
        ("models.py:dict_as_args", ["args of type dict: expected a tuple", "return (model, (), kwargs)"]),
        ("models.py:list_as_kwargs", ["kwargs of type list: expected a dict"]),
        (
            "models.py:no_inputs",
            ["no example inputs", "Tiny.forward needs them (required: x)", "(model, args)"],
        ),
        ("models.py:too_many", ["do not fit Tiny.forward(x, scale): too many positional arguments"]),
        ("models.py:misnamed", ["do not fit Tiny.forward(x, scale): ", "'scael'"]),
    ],
)
def test_bad_targets(target, parts):
    fails(sites(target), *parts)


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("x = 1\nx +\n", ["raised SyntaxError: invalid syntax (at broken.py:2)"]),
        (
            "import absent_package\n",
            ["raised ModuleNotFoundError: No module named 'absent_package' (at broken.py:1)", "--debug"],
        ),
        ("\n1 / 0\n", ["raised ZeroDivisionError: division by zero (at broken.py:2)", "--debug"]),
        ("import sys\nsys.exit(3)\n", ["raised SystemExit: 3 (at broken.py:2)"]),
    ],
)
@pytest.mark.parametrize("where", ["broken.py", "broken"])
def test_targets_that_cannot_be_imported(tmp_path, where, source, parts):
    (tmp_path / "broken.py").write_text(source)
    fails(sites(f"{where}:build"), f"{where!r} cannot be imported", *parts)


def test_a_file_of_a_package_is_to_be_named_by_the_package(tmp_path):
    (tmp_path / "inside.py").write_text("from . import neighbour\n")
    fails(sites("inside.py:build"), "relative import", "name it by its package", "package.inside:callable")


def test_a_file_without_callables(tmp_path):
    (tmp_path / "bare.py").write_text("from torch import nn\n")
    fails(
        sites("bare.py:build"),
        "'bare.py' has no 'build'",
        "it defines no callable; add one that returns a model",
    )


def test_a_module_that_imports_its_names_when_asked(tmp_path):
    (tmp_path / "lazy.py").write_text(
        "def __getattr__(name):\n    raise RuntimeError(f'{name} needs flash')\n"
    )
    fails(sites("lazy:build"), "'build' of 'lazy' cannot be had: it raised RuntimeError: build needs flash")


def test_a_text_file(tmp_path):
    (tmp_path / "model.txt").write_text("weights")
    fails(sites("./model.txt:build"), "'./model.txt' is not a Python file")


def test_a_very_long_message_is_cut(tmp_path):
    (tmp_path / "long.py").write_text("def build():\n    raise ValueError('x' * 5000)\n")
    result = sites("long.py:build")
    fails(result, "xxx... (at long.py:2)")
    assert len(result.stderr) < 600


def test_an_exported_program_is_a_model():
    done = sites("models.py:exported")
    assert done.exit_code == 0, done.output
    assert "linear" in done.stdout


def test_callables_of_all_kinds(tmp_path):
    (tmp_path / "kinds.py").write_text(
        """
import functools
from torch import nn

class Factory:
    def build(self, n=2):
        return nn.Identity(), (n,)
    def __call__(self):
        return self.build()

def sized(n): return nn.Identity(), (n,)
async def later(): return nn.Identity()
def several(): yield nn.Identity()

factory = Factory()
partial = functools.partial(sized, 3)
half = functools.partial(sized)
"""
    )
    for name in ("factory", "factory.build", "partial"):
        assert sites(f"kinds.py:{name}").exit_code == 0, name
    fails(sites("kinds.py:half"), "'half' in 'kinds.py' cannot be called without arguments (required: n)")
    fails(sites("kinds.py:several"), "kinds.py:several returned generator: expected a model, (model, args)")
    with pytest.warns(RuntimeWarning, match="never awaited"):
        fails(sites("kinds.py:later"), "kinds.py:later returned coroutine: expected a model, (model, args)")


def test_a_callable_that_python_knows_no_parameters_of(tmp_path):
    (tmp_path / "builtin.py").write_text("build = dict\n")
    fails(sites("builtin.py:build"), "builtin.py:build returned dict: expected a model")


def test_an_inner_folder_without_a_model(tmp_path):
    (tmp_path / "empty").mkdir()
    fails(sites("empty"), "folder 'empty' has neither config.json (a model) nor model_index.json", FORMS[9:])
