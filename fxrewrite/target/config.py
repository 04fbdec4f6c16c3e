"""TARGETs that are configurations: the ``config.json`` of a diffusers or transformers model.

The class that it names is built on the meta device, without weights, and tried on inputs of the sizes
that the configuration gives: the first that it takes are the example inputs.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import os
from collections.abc import Mapping
from typing import Any

from ..errors import TargetError, first_line
from ..streams import quiet_logs
from .inputs import dtype_named
from .target import Target
from .telling import DEBUG, describe
from .trial import Refusal, first_taken

DEFAULT_DTYPES = ("bfloat16", "float32")
"""Where neither the user nor the configuration names one: the first in which the model runs."""
INPUT_HINT = "give them with --input NAME=DTYPE[SIZE,...], once for each"


def load_config(
    path: str,
    inputs: Mapping[str, Any],
    dtype: str | None = None,
    library: str = "",
    kind: str = "",
    device: str = "meta",
) -> Target:
    """The model that the configuration file ``path`` describes, with inputs on the meta device.

    It is built on ``device``; on a real one its weights are those of a new model, random.
    ``library`` and ``kind`` name its class where the file does not. Raises `TargetError` where the
    file, its class, or inputs for it cannot be had.
    """
    import torch

    config = read_json(path)
    library, kind = _class_of(config, path, library, kind)
    named = dtype or _dtype_in(config)
    dtypes = [dtype_named(name, f"{path}: dtype") for name in ([named] if named else DEFAULT_DTYPES)]
    module = _import(library, path)
    if kind not in dir(module):
        close = difflib.get_close_matches(kind, dir(module), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it may need a newer {library}"
        raise TargetError(f"{path}: {library} {module.__version__} has no class {kind!r}: {hint}")

    def build(device: str, dtype: Any) -> Any:
        try:
            with torch.device(device), quiet_logs():
                return _BUILDERS[library](module, kind, config).to(dtype).eval()
        except Exception as error:
            raise TargetError(
                f"{path}: {library}.{kind} cannot be built: {describe(error)}; {DEBUG}"
            ) from error

    for chosen in dtypes:
        model = build("meta", chosen)
        try:
            given = _inputs(model, library, chosen, inputs, path)
            break
        except TargetError:
            if chosen is dtypes[-1]:
                raise
    notes = [
        f"{kind} on the {device} device in {str(chosen).removeprefix('torch.')}, called with "
        + ", ".join(f"{name}={_short(value)}" for name, value in given.items())
    ]
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else "unknown"
        notes.append(
            f"the configuration's quantization ({method}) is not applied: its layers are scanned plain"
        )
    return Target(model if device == "meta" else build(device, chosen), (), given, notes=tuple(notes))


def read_json(path: str) -> dict[str, Any]:
    """The object in the file ``path``; raises `TargetError` where there is none."""
    if not os.path.isfile(path):
        raise TargetError(f"file {path!r} does not exist; the current folder is {os.getcwd()}")
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except OSError as error:
        raise TargetError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error
    except ValueError as error:
        raise TargetError(f"{path} is not JSON: {first_line(error)}") from error
    if not isinstance(config, dict):
        raise TargetError(
            f"{path} is not a model's configuration: expected an object, got a {type(config).__name__}"
        )
    return config


def _class_of(config: dict[str, Any], path: str, library: str, kind: str) -> tuple[str, str]:
    if "_class_name" in config:
        return "diffusers", str(config["_class_name"])
    if "model_type" in config:
        named = config.get("architectures") or "AutoModel"
        return "transformers", kind or str(named[0] if isinstance(named, list) else named)
    if library and kind:
        return library, kind
    raise TargetError(
        f"{path} names no model: expected '_class_name' (diffusers) or 'model_type' and 'architectures' "
        "(transformers)"
    )


def _dtype_in(config: dict[str, Any]) -> str | None:
    found = config.get("dtype") or config.get("torch_dtype")
    return found if isinstance(found, str) else None


def _import(library: str, path: str) -> Any:
    if library not in _BUILDERS:
        raise TargetError(
            f"{path}: models of {library!r} are not known here: expected {' or '.join(_BUILDERS)}"
        )
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise TargetError(f"{path} needs {library}: {describe(error)}; pip install {library}") from error


def _of_diffusers(module: Any, kind: str, config: dict[str, Any]) -> Any:
    return getattr(module, kind).from_config(config)


def _of_transformers(module: Any, kind: str, config: dict[str, Any]) -> Any:
    values = {name: value for name, value in config.items() if name != "quantization_config"}
    parsed = module.AutoConfig.for_model(**values)
    if kind == "AutoModel":
        return module.AutoModel.from_config(parsed)
    return getattr(module, kind)(parsed)


_BUILDERS = {"diffusers": _of_diffusers, "transformers": _of_transformers}


# -------------------------------------------------------------------------------------------- inputs


def _inputs(model: Any, library: str, dtype: Any, given: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The first candidates that the model runs on, with those ``given`` in their place."""
    signature = inspect.signature(model.forward)
    for name in given:
        if name not in signature.parameters:
            raise TargetError(
                f"{path}: {type(model).__name__}.forward has no {name!r}: expected one of "
                f"{', '.join(signature.parameters)}"
            )
    if library == "diffusers":
        from .diffusers_inputs import candidates
    else:
        from .transformers_inputs import candidates
    complete, missing = [], ""
    for candidate in candidates(model, signature, dtype):
        chosen = {**candidate, **given}
        without = [
            p.name
            for p in signature.parameters.values()
            if p.default is p.empty
            and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
            and p.name not in chosen
        ]
        if without:
            missing = missing or f"nothing is known of {', '.join(without)}"
        else:
            complete.append(chosen)
    found = first_taken(model, complete, frozenset(given))
    if not isinstance(found, Refusal):
        return found
    if found.plausible is not None:  # how far they lead, the analysis tells
        return found.plausible
    raise TargetError(
        f"{path}: no inputs were found that {type(model).__name__}.forward{_names(signature)} takes "
        f"({found.problem or missing}); {INPUT_HINT}"
    )


def _names(signature: inspect.Signature) -> str:
    return f"({', '.join(signature.parameters)})"


def _short(value: Any) -> str:
    """ "bfloat16[1, 4096, 64]"."""
    import torch

    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_short, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_short(part)}" for name, part in value.items()) + "}"
    return repr(value)
