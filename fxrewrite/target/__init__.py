"""TARGETs of the command line: what a user may name, and how it becomes a model with inputs.

package.module:callable, path/to/file.py:callable     python.py
model.pt2                                             saved.py
folder, folder/config.json                            config.py
a pipeline's folder                                   pipeline.py
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..errors import TargetError
from .python import FORMS, load_callable
from .target import Target
from .telling import DEBUG, describe, shorten

__all__ = ["DEBUG", "Target", "describe", "load", "shorten"]

CONFIG, INDEX = "config.json", "model_index.json"


def load(
    text: str, inputs: Mapping[str, Any] | None = None, dtype: str | None = None, device: str = "meta"
) -> list[Target]:
    """The models that the TARGET ``text`` names: one, or those of a pipeline.

    ``inputs`` are example inputs by name, in place of those that would be chosen; ``dtype`` the one
    of a model built from a configuration (default: what that says, else bfloat16, or float32 for a model
    that runs in it alone), ``device`` where it is built. Raises `TargetError` where ``text`` leads to no
    model.
    """
    inputs = dict(inputs or {})
    if text.endswith(".pt2"):
        from .saved import load_saved

        _no_inputs(text, inputs, "a saved program has its own")
        _no_dtype(text, dtype, "a saved program")
        return [load_saved(text)]
    folder, name = os.path.split(text)
    if name == INDEX:
        text = folder or "."
    if os.path.isdir(text):
        if os.path.isfile(os.path.join(text, INDEX)):
            from .pipeline import load_pipeline

            _no_inputs(text, inputs, "a pipeline has several models: name the folder of one of them")
            return load_pipeline(text, dtype)
        if not os.path.isfile(os.path.join(text, CONFIG)):
            raise TargetError(
                f"folder {text!r} has neither {CONFIG} (a model) nor {INDEX} (a diffusers pipeline); "
                f"expected such a folder, a .pt2 file or {FORMS}"
            )
        text = os.path.join(text, CONFIG)
    if text.endswith(".json"):
        from .config import load_config

        return [load_config(text, inputs, dtype, device=device)]
    _no_dtype(text, dtype, "a model of your own")
    return [load_callable(text, inputs)]


def _no_dtype(text: str, dtype: str | None, what: str) -> None:
    if dtype is not None:
        raise TargetError(f"{text}: --dtype {dtype} does not go with it: {what} has its own")


def _no_inputs(text: str, inputs: Mapping[str, Any], why: str) -> None:
    if inputs:
        raise TargetError(f"{text}: --input {next(iter(inputs))} does not go with it: {why}")
