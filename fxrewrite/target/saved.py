"""TARGETs that are files saved by ``torch.export.save``."""

from __future__ import annotations

import os
import zipfile

from ..errors import TargetError
from ..streams import quiet_logs
from .target import Target
from .telling import DEBUG, describe


def load_saved(path: str) -> Target:
    """The program in the file ``path``; raises `TargetError` where there is none."""
    import torch

    import fxrewrite  # noqa: F401  # a program that was rewritten calls its operators

    if not os.path.isfile(path):
        raise TargetError(f"file {path!r} does not exist; the current folder is {os.getcwd()}")
    if not zipfile.is_zipfile(path):
        raise TargetError(
            f"{path} is no program saved by torch.export.save: it is no archive, or its end is missing; "
            "save it again"
        )
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any("/aotinductor/" in name for name in names):
        raise TargetError(
            f"{path} is compiled already (an AOTInductor package): name the file of torch.export.save"
        )
    try:
        with quiet_logs():  # a failure is logged with its traceback
            return Target(torch.export.load(path))
    except Exception as error:
        raise TargetError(
            f"{path} cannot be loaded by torch {torch.__version__}: {describe(error)}; expected what "
            f"torch.export.save of this torch or an older one has written; {DEBUG}"
        ) from error
