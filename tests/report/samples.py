"""Reports made by hand: what the tests of table and JSON show."""

from __future__ import annotations

from typing import Any

from fxrewrite.guards.verdict import Judgement, Verdict
from fxrewrite.report import Capture, Operation, Reason, Refusal, Report, Site

ATTENTION = "/env/lib/python3.11/site-packages/diffusers/models/attention_processor.py"
TOKENS = "bfloat16[1, 4608, 3072]"
HEADS = "bfloat16[1, 24, 4608, 128]"
ATTENTION_WORK = 4 * 24 * 4608**2 * 128


def site(number: int, **fields: Any) -> Site:
    """A matched linear, with ``fields`` set otherwise."""
    given: dict[str, Any] = {
        "kind": "linear",
        "status": "matched",
        "rule": "Linear",
        "implementation": "avx2",
    }
    given.update(fields)
    if given["status"] == "rejected":
        given["implementation"] = None
    return Site(id=f"s{number}", **given)


def covered(number: int, by: Site) -> Site:
    """A linear that ``by``, a matched site, covers."""
    detail = f"part of the {by.kind} site at {by.node}"
    return site(
        number,
        status="rejected",
        code=Reason.OVERLAP,
        detail=detail,
        covered_by=by.id,
        module=by.module,
        work=10,
    )


def transformer(blocks: int = 57) -> Report:
    """A transformer of equal blocks: three matched and one rejected site in each, and one at the end."""
    sites: list[Site] = []
    for block in range(blocks):
        name = f"transformer_blocks.{block}"
        sites.append(
            site(
                len(sites),
                kind="sdpa",
                rule="Sdpa",
                module=f"{name}.attn",
                location=f"{ATTENTION}:2345",
                operands={"q": HEADS, "k": HEADS, "v": HEADS},
                judgements=(
                    Judgement("head_dim % 32 == 0", Verdict.PROVED, "static"),
                    Judgement("batch == 1", Verdict.UNKNOWN, residual="s0 == 1"),
                ),
                refusals=(Refusal("amx_bf16", "this CPU has no AMX"),),
                flops="4*s0*24*4608**2*128",
                work=ATTENTION_WORK,
                bytes=4 * 24 * 4608 * 128 * 2,
                operations=(
                    Operation("k_t = aten.transpose.int(k, -2, -1)", f"{ATTENTION}:2344", "k_t = k.mT"),
                    Operation("sdpa = aten.sdpa.default(q, k_t)", f"{ATTENTION}:2345", "o = sdpa(q, k_t)"),
                    Operation(
                        "view = aten.view.default(sdpa, [1, -1])", f"{ATTENTION}:2345", "o = sdpa(q, k_t)"
                    ),
                ),
            )
        )
        for letter, line in zip("qk", (2301, 2302), strict=True):
            sites.append(
                site(
                    len(sites),
                    module=f"{name}.attn.to_{letter}",
                    location=f"{ATTENTION}:{line}",
                    operands={"x": TOKENS, "weight": "bfloat16[3072, 3072]"},
                )
            )
        sites.append(
            site(
                len(sites),
                status="rejected",
                module=f"{name}.ff.net.2",
                location=f"{ATTENTION}:1200",
                code=Reason.ESCAPES,
                detail=f"the product matmul_{block} is also read by add_{3 * block}, outside the site",
                operands={"x": "bfloat16[1, 4608, 12288]"},
            )
        )
    sites.append(
        site(
            len(sites),
            status="rejected",
            module="proj_out",
            location=f"{ATTENTION}:99",
            code=Reason.GUARD,
            detail="n = 63: 63 % 16 = 15",
        )
    )
    note = "experts: data-dependent control flow, runs eagerly"
    captured = Capture("forward", 1234, sites, 2.25, 0.5, work=2 * blocks * ATTENTION_WORK)
    return Report([captured], [note], predicted=True)
