"""The zoo's registry and ground truth, and how many sites of each family an entry has."""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ZOO = Path(__file__).resolve().parents[2].parent / "shared" / "zoo"
MISSING = "no model zoo at ../shared/zoo"

FAMILIES = ("fused", "manual", "linear", "fp8", "linear_attention")


def present() -> bool:
    return (ZOO / "zoo.py").is_file() and (ZOO / "truth.json").is_file()


@functools.cache
def registry() -> ModuleType:
    """The zoo module (heavy: it imports torch, not yet the model libraries)."""
    if str(ZOO) not in sys.path:
        sys.path.insert(0, str(ZOO))
    spec = importlib.util.spec_from_file_location("_shared_zoo", ZOO / "zoo.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["_shared_zoo"] = module
    spec.loader.exec_module(module)
    return module


@functools.cache
def truth() -> dict[str, dict[str, Any]]:
    return json.loads((ZOO / "truth.json").read_text())


def names() -> list[str]:
    """All entries, in the registry's order (truth.json has them in the same)."""
    return list(truth()) if present() else []


@dataclass(frozen=True)
class Expected:
    """Sites of one entry by family: in the eager model, and what of them reaches a Dynamo backend."""

    eager: dict[str, int]
    reach: dict[str, int]


def expected(name: str) -> Expected | None:
    """None where truth.json has no counts (the entry did not build when they were taken)."""
    entry = truth()[name]
    if "eager" not in entry:
        return None
    counts, expect = entry["eager"], entry.get("expect") or {}
    sites = (entry.get("capture", {}).get("dynamo") or {}).get("sites") or {}
    eager = {
        "fused": counts["n_sdpa"],
        "manual": counts["n_manual_attn"],
        "linear": counts["n_linear"],
        "fp8": expect.get("fp8", 0),
        "linear_attention": counts["n_linear_attn"],
    }
    seen = {
        "fused": sites.get("sdpa_fused", 0),
        "manual": sites.get("sdpa_manual", 0),
        "linear": sites.get("linear:linear", 0),
        "fp8": sites.get("fp8", 0),
        "linear_attention": sites.get("linear_attn", 0),
    }
    if name == "bloom-alibi-eager":  # the recorded analyser does not read keyword operands
        seen["manual"] = eager["manual"]
    return Expected(eager, {f: min(eager[f], seen[f]) for f in FAMILIES})


def found(name: str, sites: dict[str, dict[str, int]], matched_only: bool = False) -> dict[str, int]:
    """Report's sites of one entry, attributed to families and never more than the model has.

    The report does not tell fused from hand-written attention: fused ones are counted first. A linear
    on an fp8 weight is a site of kind fp8_matmul, and counts for both families."""
    want = expected(name).eager
    got = {kind: c["matched"] + (0 if matched_only else c["rejected"]) for kind, c in sites.items()}
    fused = min(want["fused"], got["sdpa"])
    return {
        "fused": fused,
        "manual": min(want["manual"], got["sdpa"] - fused),
        "linear": min(want["linear"], got["linear"] + got["fp8_matmul"]),
        "fp8": min(want["fp8"], got["fp8_matmul"]),
        "linear_attention": min(want["linear_attention"], got["linear_attention"]),
    }
