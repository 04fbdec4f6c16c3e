"""One zoo entry: build, run eagerly, in float64 and rewritten, compare, count sites. Has its own process."""

from __future__ import annotations

import time
import traceback
from typing import Any

from .entries import registry


def _prepare(name: str) -> str | None:
    """Make the entry's packages importable; what is missing, or None."""
    import torch

    from tests.support.stubs import stub_torchvision

    torch.set_num_threads(1)
    if name.startswith("timm"):
        stub_torchvision()
    return registry().available(registry().REG[name])


def _build(name: str, seed: int):
    return registry().REG[name].make(seed=seed)


def measure_reference(name: str) -> dict[str, Any]:
    """How well the float64 reference of an entry agrees with eager."""
    from tests.support import contract, float64
    from tests.support.soundness import EXPECTED_ERROR, first_line, run

    try:
        _prepare(name)
        eager = run(*_build(name, 0))
    except Exception as error:
        return {"entry": name, "reference": "no eager run", "why": first_line(error)}
    try:
        exact = float64.run_float64(*_build(name, 0))
        scores = contract.score(eager, eager, exact)
    except Exception as error:
        return {"entry": name, "reference": "none", "why": first_line(error), "trace": traceback.format_exc()}
    relative = max((s.eager_relative for s in scores), default=0.0)
    limit = EXPECTED_ERROR[registry().DT[registry().REG[name].dtype]]
    return {"entry": name, "reference": "good" if relative <= limit else "weak", "relative": relative}


def run_entry(name: str, subject_name: str = "fxrewrite") -> dict[str, Any]:
    """The result of one entry as plain data; never raises (a crash of the process is the caller's to see)."""
    from tests.support.contract import ContractError
    from tests.support.soundness import Soundness, first_line
    from tests.support.subject import SUBJECTS

    result: dict[str, Any] = {"entry": name, "subject": subject_name, "status": "skip", "message": ""}
    began, began_cpu = time.perf_counter(), time.process_time()
    check = Soundness(
        lambda seed: _build(name, seed), SUBJECTS[subject_name], own_dtypes="layerwise" in name
    )  # fmt: skip
    try:
        missing = _prepare(name)
        if missing:
            return {**result, "message": missing}
        check.check()
        result["status"] = "sound"
    except ContractError as error:
        result.update(status="breach", message=str(error), trace=traceback.format_exc())
    except BaseException as error:
        skipped = check.stage in ("build", "eager")
        result.update(
            status="skip" if skipped else "error",
            message=f"{check.stage}: {first_line(error)}",
            trace=traceback.format_exc(),
        )
    if check.report is not None:
        result.update(sites=check.sites(), reasons=check.reasons(), notes=list(check.report.notes))
    result.update(
        reference=check.reference,
        relative=check.relative,
        ratio=check.ratio,
        one_seed_ratio=check.one_seed_ratio,
        bit_equal=bool(check.scores) and all(s.bit_equal for s in check.scores),
        seeds=check.seeds,
        clock={stage: round(seconds, 3) for stage, seconds in check.clock.items()},
        seconds=round(time.perf_counter() - began, 2),
        cpu=round(time.process_time() - began_cpu, 2),
    )
    return result
