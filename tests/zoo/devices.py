"""The dry run of the model zoo on the device "cuda": the same sites as on the CPU, with CUDA implementations.

    python -m tests.zoo.devices                 every entry, a line each
    python -m tests.zoo.devices --only 'hf-*'   some entries (comma-separated patterns)

No GPU is needed: the models' tensors are fake ones.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections import Counter
from typing import Any

from . import entries, forked
from .measure import _preload

TIMEOUT = 240.0


def one(name: str) -> dict[str, Any]:
    """The entry's sites on both devices, and where they differ."""
    import torch

    from fxrewrite import CaptureError
    from tests.support.devices import CUDA_KERNELS, counted, on_fake, sites
    from tests.support.soundness import first_line
    from tests.zoo import worker

    result: dict[str, Any] = {"entry": name, "status": "skip", "message": ""}
    try:
        missing = worker._prepare(name)
        if missing:
            return {**result, "message": missing}
        built = worker._build(name, 0)
        twin = on_fake("cuda", *built)
    except Exception as error:
        return {**result, "message": first_line(error)[:160]}
    if torch.version.cuda is None:
        from tests.cuda.building import build

        torch.ops.load_library(str(build("fxrewrite_absent_device")))
    try:
        here = sites(*built)
    except CaptureError as error:
        return {**result, "message": first_line(error)[:160]}
    try:
        there = sites(*twin)
    except CaptureError as error:  # the model mixes devices, or asks for what only a GPU has
        return {**result, "message": f"on cuda, {first_line(error)[:160]}"}
    if any("from the 'CUDA' backend" in site.reason for site in there):
        return {**result, "message": "the model moves a constant to the device, which takes a real one"}
    lost, extra = (counted(a) - counted(b) for a, b in ((here, there), (there, here)))
    strange = [
        site.reason or site.implementation
        for site in there
        if (site.matched and site.implementation not in CUDA_KERNELS) or "is on cuda" in site.reason
    ]
    return {
        **result,
        "status": "differs" if lost or extra or strange else "same",
        "sites": len(there),
        "implementations": Counter(site.implementation for site in there if site.matched),
        "message": "; ".join(
            f"{what} {list(found)[:2]}"
            for what, found in (("lost", lost), ("extra", extra), ("strange", strange))
            if found
        ),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.zoo.devices",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="*", help="comma-separated name patterns")
    options = parser.parse_args(argv)
    if not entries.present():
        print(entries.MISSING, file=sys.stderr)
        return 2
    names = [n for n in entries.names() if any(fnmatch.fnmatch(n, p) for p in options.only.split(","))]
    _preload("fxrewrite")
    statuses: Counter[str] = Counter()
    implementations: Counter[str] = Counter()
    for result in forked.each(names, one, TIMEOUT):
        statuses[result["status"]] += 1
        implementations.update(result.get("implementations") or {})
        sites = f"{result['sites']:4} sites" if "sites" in result else ""
        print(f"{result['status']:8} {result['entry']:36} {sites}  {result['message'][:200]}", flush=True)
    print(", ".join(f"{n} {status}" for status, n in statuses.most_common()))
    print(", ".join(f"{n} {name}" for name, n in implementations.most_common()))
    return 0 if set(statuses) <= {"same", "skip"} else 1


if __name__ == "__main__":
    sys.exit(main())
