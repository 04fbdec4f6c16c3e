"""A picture of a benchmark."""

from __future__ import annotations

from ..errors import FxrewriteError
from ..report.words import duration
from .bench import EAGER, INDUCTOR, OURS, Benchmark

_COLOURS = {EAGER: "#8c959f", INDUCTOR: "#bf8700", OURS: "#1a7f37"}
_SHOWN = 12
"""Sites in the picture, the longest."""


def draw(done: Benchmark, title: str, path: str) -> None:
    """Draw medians as bars and quartiles as whiskers; the file's ending gives its format.

    Raises FxrewriteError where the file cannot be written.
    """
    from matplotlib.figure import Figure

    sites = done.sites[:_SHOWN]
    rows = [("end to end", done.times)] + [
        (f"{entry.count} x {entry.site.kind}\n{entry.site.module[-44:]}", entry.times) for entry in sites
    ]
    figure = Figure(figsize=(9, 1.2 + 0.6 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    sides = list(done.times)
    height = 0.8 / len(sides)
    longest = 1.0
    for number, side in enumerate(sides):
        # relative to eager, so that layers of all sizes fit in one picture
        base = [times[EAGER].median for _, times in rows]
        medians = [times[side].median / b for (_, times), b in zip(rows, base, strict=True)]
        quartiles = [[q / b for q in times[side].quartiles] for (_, times), b in zip(rows, base, strict=True)]
        whiskers = [
            [m - low for m, (low, _) in zip(medians, quartiles, strict=True)],
            [high - m for m, (_, high) in zip(medians, quartiles, strict=True)],
        ]
        places = [row + (number - (len(sides) - 1) / 2) * height for row in range(len(rows))]
        bars = axes.barh(
            places, medians, height, xerr=whiskers, label=side, color=_COLOURS[side], ecolor="#57606a"
        )
        shown = [duration(times[side].median) for _, times in rows]
        axes.bar_label(bars, shown, padding=4, fontsize=8)
        longest = max(longest, *(m + w for m, w in zip(medians, whiskers[1], strict=True)))
    axes.axvline(1, color="#57606a", linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 1.3 * longest)
    axes.margins(y=0.01)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("median time, as a part of eager's (whiskers: quartiles)")
    axes.set_title(title, loc="left", y=1.02)
    figure.legend(loc="outside upper right", ncols=len(sides), frameon=False)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise FxrewriteError(f"--plot {path!r} cannot be written: {error}") from error
