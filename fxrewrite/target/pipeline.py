"""TARGETs that are folders of diffusers pipelines: every component that is a model."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from ..errors import FxrewriteError, TargetError
from .config import load_config, read_json
from .target import Target

INDEX, CONFIG = "model_index.json", "config.json"


def load_pipeline(folder: str, dtype: str | None) -> list[Target]:
    """A target for each model of the pipeline, named by its component.

    One that no inputs are found for, or whose folder is missing, has a `Target` without model, and a note
    that says why. Raises `TargetError` where the folder's index names no component with a configuration.
    """
    targets = []
    found = False
    for name, described in read_json(os.path.join(folder, INDEX)).items():
        path = os.path.join(folder, name, CONFIG)
        if not _is_component(described):
            continue
        if os.path.isfile(path):
            found = True
            targets.append(_load(name, path, dtype, *described))
        elif not os.path.isdir(os.path.dirname(path)):
            note = f"not looked at: {INDEX} names it, and there is no folder {os.path.dirname(path)!r}"
            targets.append(Target(None, name=name, notes=(note,)))
    if not found:
        raise TargetError(f"folder {folder!r} has no component with a {CONFIG}: expected one folder for each")
    return targets


def _is_component(described: Any) -> bool:
    return isinstance(described, list) and len(described) == 2 and all(isinstance(d, str) for d in described)


def _load(name: str, path: str, dtype: str | None, library: str, kind: str) -> Target:
    try:
        return replace(load_config(path, {}, dtype, library, kind), name=name)
    except FxrewriteError as error:
        return Target(None, name=name, notes=(str(error),))
