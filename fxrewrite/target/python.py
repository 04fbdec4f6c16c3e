"""TARGETs of the form "where:callable": from there to a model and its example inputs."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ..errors import TargetError
from .target import Target
from .telling import DEBUG, describe

FORMS = "package.module:callable or path/to/file.py:callable"
RETURNS = "a model, (model, args) or (model, args, kwargs)"


def load_callable(text: str, inputs: Mapping[str, Any]) -> Target:
    """Import, call and check the TARGET ``text``; raise `TargetError` where that fails.

    ``inputs`` are given to the model as keyword arguments, over what the callable returns.
    """
    import torch

    where, name = _split(text)
    module = _import_file(where) if _is_file(where) else _import_module(where)
    build = _find(module, where, name)
    target = _unpack(_call(build, module, text), text)
    if inputs and isinstance(target.model, torch.export.ExportedProgram):
        raise TargetError(
            f"{text}: --input {next(iter(inputs))} does not go with it: an ExportedProgram has its own"
        )
    target.kwargs.update(inputs)
    _check_inputs(target, text)
    return target


def _split(text: str) -> tuple[str, str]:
    where, colon, name = text.rpartition(":")
    if where and name and os.sep not in name:
        return where, name
    bare = text.rstrip(":") if not colon or not name else text
    example = f", for instance {bare}:build" if _is_file(bare) or bare.replace(".", "").isidentifier() else ""
    raise TargetError(f"TARGET {text!r} does not name a callable: expected {FORMS}{example}")


def _is_file(where: str) -> bool:
    return where.endswith(".py") or os.sep in where or "/" in where


def _import_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        kind = "is a folder" if os.path.isdir(path) else "does not exist"
        raise TargetError(
            f"file {path!r} {kind}: expected a Python file; the current folder is {os.getcwd()}"
        )
    stem = os.path.splitext(os.path.basename(path))[0]
    name = f"fxrewrite_target_{stem}"
    spec = importlib.util.spec_from_file_location(name, os.path.abspath(path))
    if spec is None or spec.loader is None:
        raise TargetError(f"file {path!r} is not a Python file: expected {FORMS}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _search_first(os.path.dirname(os.path.abspath(path)))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        advice = DEBUG
        if isinstance(error, ImportError) and "relative import" in str(error):
            advice = f"name it by its package instead, as in package.{stem}:callable"
        raise TargetError(
            f"file {path!r} cannot be imported: it raised {describe(error, module.__file__)}; {advice}"
        ) from error
    return module


def _import_module(name: str) -> ModuleType:
    _search_first(os.getcwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            raise TargetError(
                f"module {name!r} cannot be imported: there is no module {missing!r} in the current folder "
                f"or the environment; expected {FORMS}"
            ) from error
        raise TargetError(
            f"module {name!r} cannot be imported: it raised {describe(error)}; {DEBUG}"
        ) from error


def _search_first(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _find(module: ModuleType, where: str, name: str) -> Callable[[], Any]:
    found: Any = module
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise TargetError(f"{where!r} has no {name!r}: {_offer(module, name)}") from error
    except Exception as error:  # a module that imports its names when they are asked for
        raise TargetError(
            f"{name!r} of {where!r} cannot be had: it raised {describe(error)}; {DEBUG}"
        ) from error
    if _is_model(found):
        raise TargetError(
            f"{name!r} in {where!r} is a model, not a callable that returns one: "
            f"add a function that returns {name}, or (model, args, kwargs)"
        )
    if not callable(found):
        raise TargetError(
            f"{name!r} in {where!r} is not callable but of type {type(found).__name__}: "
            f"expected a callable without arguments that returns {RETURNS}"
        )
    needed = _unbound(found, (), {})
    if needed:
        raise TargetError(
            f"{name!r} in {where!r} cannot be called without arguments ({needed}): "
            f"give its parameters defaults, or name a callable that needs none"
        )
    return found  # type: ignore[no-any-return]


def _offer(module: ModuleType, name: str) -> str:
    own = [
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and callable(value)
        and getattr(value, "__module__", None) == module.__name__
    ]
    close = difflib.get_close_matches(name, own, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    if not own:
        return f"it defines no callable; add one that returns {RETURNS}"
    return "expected one of its callables: " + ", ".join(own[:8]) + (", ..." if len(own) > 8 else "")


def _call(build: Callable[[], Any], module: ModuleType, text: str) -> Any:
    try:
        return build()
    except (Exception, SystemExit) as error:
        raise TargetError(f"{text} raised {describe(error, module.__file__)}; {DEBUG}") from error


def _unpack(result: Any, text: str) -> Target:
    if _is_model(result):
        return Target(result)
    if not isinstance(result, tuple):
        raise TargetError(f"{text} returned {_kind(result)}: expected {RETURNS}{_hint(result)}")
    if not 1 <= len(result) <= 3:
        raise TargetError(f"{text} returned a tuple of {len(result)}: expected {RETURNS}")
    model = result[0]
    args = result[1] if len(result) > 1 else ()
    kwargs = result[2] if len(result) > 2 else None
    if not _is_model(model):
        raise TargetError(
            f"{text} returned a tuple that starts with {_kind(model)}: expected {RETURNS}{_hint(model)}"
        )
    if not isinstance(args, (tuple, list)):
        fix = "(model, (), kwargs)" if isinstance(args, Mapping) else "(model, (x,)) for a single argument x"
        raise TargetError(f"{text} returned args of type {_kind(args)}: expected a tuple; return {fix}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TargetError(
            f"{text} returned kwargs of type {_kind(kwargs)}: expected a dict of keyword arguments"
        )
    return Target(model, tuple(args), dict(kwargs or {}))


def _is_model(value: Any) -> bool:
    import torch

    return isinstance(value, (torch.nn.Module, torch.export.ExportedProgram))


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _hint(value: Any) -> str:
    """Where ``value`` holds models, as a hint: a pipeline is returned for its transformer."""
    held = [name for name, part in getattr(value, "__dict__", {}).items() if _is_model(part)]
    return f"; return one of its modules: {', '.join(held[:8])}" if held else ""


def _check_inputs(target: Target, text: str) -> None:
    """Compare the example inputs with the signature of the model's ``forward``."""
    forward = getattr(target.model, "forward", None)
    if forward is None or getattr(target.model, "_forward_pre_hooks", None):  # a hook may change them
        return
    problem = _unbound(forward, target.args, target.kwargs)
    if not problem:
        return
    name = type(target.model).__name__
    if not target.args and not target.kwargs:
        raise TargetError(
            f"{text} gave no example inputs, and {name}.forward needs them ({problem}): "
            f"return (model, args) or (model, args, kwargs)"
        )
    raise TargetError(
        f"{text} gave example inputs that do not fit {name}.forward{_signature(forward)}: {problem}; "
        f"set right the args and kwargs it returns"
    )


def _unbound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why ``function`` does not take these arguments; "" where it does or its signature is unknown."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        required = [
            p.name
            for p in signature.parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        return "required: " + ", ".join(required) if not args and not kwargs else str(error)
    return ""


def _signature(function: Callable[..., Any]) -> str:
    return f"({', '.join(inspect.signature(function).parameters)})"
