"""How the report says things: numbers, places and operands, for every form that it is shown in."""

from __future__ import annotations

import os
import re

from .findings import Findings
from .site import Site

_SHORT_DTYPE = re.compile(r"\b(b?)float(16|32|64)\b")


def sites_text(count: int) -> str:
    """ "1 site", "2 sites"."""
    return f"{count} site{'s' * (count != 1)}"


def amount(number: float, unit: str) -> str:
    """A number with three digits and a decimal prefix: "1.23 TFLOP", "456 MB"."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(number) < 999.5 or prefix == "P":
            break
        number /= 1000
    digits = f"{number:.3g}" if number < 1000 else f"{number:.0f}"
    return f"{digits} {prefix}{unit}"


def duration(seconds: float) -> str:
    """Seconds with three digits, in the unit that fits: "1.23 s", "45.6 ms", "789 µs"."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 0.9995 or unit == "µs":
            break
    number = seconds * factor
    return f"{number:.3g} {unit}" if number < 999.5 else f"{number:.0f} {unit}"


def share(part: float, whole: float) -> str:
    """A part in percent, with one decimal: "97.3 %"."""
    return f"{100 * part / whole:.1f} %"


def summary(report: Findings) -> str:
    """How many sites were found, matched and rejected, by reason, in one line."""
    if not report.sites:
        return "No sites found."
    by_reason = ", ".join(f"{count} {code}" for code, count in report.reasons().most_common())
    rejected = f"{len(report.rejected)} rejected" + (f" ({by_reason})" if by_reason else "")
    return f"{sites_text(len(report.listed))} found: {len(report.matched)} matched, {rejected}."


def coverage(report: Findings) -> str:
    """What share of the model's work the sites are, in one line; "" where nothing was counted."""
    total = report.work
    if not total:
        return ""
    matched, rejected = report.covered()
    return (
        f"Work of a call: {amount(total, 'FLOP')}, of which matched sites {share(matched, total)}, rejected "
        f"sites {share(rejected, total)}, neither {share(max(total - matched - rejected, 0), total)}."
    )


def operands(site: Site) -> str:
    """The operands, with those of equal type and shape written together: "q, k, v: bf16[1,24,512,64]"."""
    names: dict[str, list[str]] = {}
    for name, described in site.operands.items():
        names.setdefault(short_dtypes(described.replace(", ", ",")), []).append(name)
    return "; ".join(f"{', '.join(same)}: {described}" for described, same in names.items())


def at_high(lowered: str) -> str:
    """What a kernel lowers, as a remark beside it: "at quality 'high': x is rounded to bfloat16"."""
    return lowered and f"at quality 'high': {lowered}"


def short_dtypes(text: str) -> str:
    """ "bfloat16" as "bf16"."""
    return _SHORT_DTYPE.sub(r"\1f\2", text)


def short_location(location: str) -> str:
    """A place in the source without the part of the path that says nothing."""
    installed = re.search(r"[/\\](?:site|dist)-packages[/\\]", location)
    if installed:
        return location[installed.end() :]
    try:
        relative = os.path.relpath(location)
    except ValueError:  # another drive, or no place at all
        return location
    return location if relative.startswith(os.pardir) else relative


def work(site: Site) -> str:
    """The work of one call: operations, bytes and their ratio; "" where not counted."""
    if not site.work:
        return ""
    text = amount(site.work, "FLOP")
    if site.bytes:
        text += f" on at least {amount(site.bytes, 'B')}: {site.work / site.bytes:.3g} FLOP a byte"
    return text if site.flops == str(site.work) else f"{text} ({site.flops})"
