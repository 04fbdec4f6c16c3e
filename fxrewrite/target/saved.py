"""TARGETs that are files saved by ``torch.export.save``."""

from __future__ import annotations

import os
import zipfile

from ..errors import TargetError
from .target import Target
from .telling import DEBUG, describe


def load_saved(path: str) -> Target:
    """The program in the file ``path``; raises `TargetError` where there is none."""
    import torch

    import fxrewrite  # noqa: F401  # a program that was rewritten calls its operators

    if not os.path.isfile(path):
        raise TargetError(f"file {path!r} does not exist; the current folder is {os.getcwd()}")
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        if any("/aotinductor/" in name for name in names):
            raise TargetError(
                f"{path} is compiled already (an AOTInductor package): name the file of torch.export.save"
            )
    try:
        return Target(torch.export.load(path))
    except Exception as error:
        raise TargetError(
            f"{path} is no program saved by torch.export.save: {describe(error)}; {DEBUG}"
        ) from error
