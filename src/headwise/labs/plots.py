"""Charts as SVG and PNG, by matplotlib. The only file that imports the plotting library."""

from __future__ import annotations

import io
import math
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

from headwise.errors import UsageError
from headwise.labs.lab import Chart
from headwise.texts import current_language
from headwise.texts import translate as _

CJK_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Arial Unicode MS",
)
"""Fonts with Chinese glyphs, by system, in order of preference."""

COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#4a5568", "#b7791f", "#2c7a7b")
"""Distinguishable in print and for most colour-blind readers; line styles differ as well."""

STYLES = {"solid": "-", "dashed": "--", "points": ""}


def chinese_font() -> str | None:
    """Name of an installed font with Chinese glyphs, None if there is none."""
    plt = _library()
    del plt
    from matplotlib import font_manager

    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    return next((name for name in CJK_FONTS if name in installed), None)


def font_advice() -> str:
    """What to do when Chinese text in figures can't be drawn; empty if it can."""
    if chinese_font() is not None:
        return ""
    return _(
        "no font with Chinese glyphs is installed, so Chinese text in PNG figures shows as boxes: "
        "install Noto Sans CJK (Debian and Ubuntu: fonts-noto-cjk; other systems: Noto Sans SC "
        "from your package manager). The SVG figures keep their text and use the reader's fonts."
    )


@lru_cache(maxsize=1)
def _library() -> Any:
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise UsageError(
            _("figures need matplotlib, which is not installed"),
            fix="pip install 'headwise[plot]'",
        ) from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _settings() -> dict[str, Any]:
    families = ["DejaVu Sans"]
    font = chinese_font()
    if font is not None:
        families = [font, *families] if current_language() == "zh" else [*families, font]
    return {
        "font.family": families,
        "svg.fonttype": "none",
        "svg.hashsalt": "headwise",
        "axes.unicode_minus": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "legend.frameon": False,
        "font.size": 10,
    }


def draw(chart: Chart) -> tuple[str, bytes]:
    """A chart as (SVG text, PNG bytes) in the current language.

    Text in the SVG is kept as text, so that it can be searched, selected and read aloud.

    Raises:
        UsageError: matplotlib is not installed.
    """
    plt = _library()
    with plt.rc_context(_settings()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure, axes = plt.subplots(figsize=(7.0, 4.2))
        try:
            {"line": _lines, "bar": _bars, "heat": _heat}[chart.kind](axes, chart, figure)
            axes.set_title(str(chart.title), loc="left", fontsize=11, wrap=True)
            axes.set_xlabel(str(chart.x_label))
            axes.set_ylabel(str(chart.y_label))
            if chart.kind == "bar" and len(chart.series) > 1:
                turned = any(label.get_rotation() for label in axes.get_xticklabels())
                place = (0.5, -0.36 if turned else -0.16)
                axes.legend(loc="upper center", bbox_to_anchor=place, ncols=3)
            elif chart.kind == "line" and len(chart.series) > 1:
                axes.legend()
            figure.tight_layout()
            svg, png = io.StringIO(), io.BytesIO()
            figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": "Headwise"})
            figure.savefig(png, format="png", dpi=130, metadata={"Software": "Headwise"})
        finally:
            plt.close(figure)
    text = svg.getvalue()
    return text[text.index("<svg") :], png.getvalue()


def _lines(axes: Any, chart: Chart, figure: Any) -> None:
    del figure
    for index, series in enumerate(chart.series):
        colour = COLOURS[index % len(COLOURS)]
        points = [(x, y) for x, y in zip(series.x, series.y, strict=True) if y is not None]
        axes.plot(
            [x for x, _y in points],
            [y for _x, y in points],
            linestyle=STYLES[series.style],
            marker="" if series.style == "dashed" else "o",
            markersize=4,
            color=colour,
            label=str(series.label),
        )
        if series.low and series.high:
            low, high = (
                [math.nan if v is None else v for v in e] for e in (series.low, series.high)
            )
            axes.fill_between(series.x, low, high, color=colour, alpha=0.15, lw=0)
    if chart.log_x:
        axes.set_xscale("log", base=2)
        ticks = sorted({x for s in chart.series for x in s.x if isinstance(x, int | float)})
        if 0 < len(ticks) <= 12:
            axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
            axes.minorticks_off()
    if chart.log_y:
        axes.set_yscale("log")


def _bars(axes: Any, chart: Chart, figure: Any) -> None:
    del figure
    names = list(dict.fromkeys(x for s in chart.series for x in s.x))
    width = 0.8 / max(len(chart.series), 1)
    for index, series in enumerate(chart.series):
        places = [names.index(x) - 0.4 + width * (index + 0.5) for x in series.x]
        heights = [0.0 if y is None else y for y in series.y]
        errors = None
        if series.low and series.high:
            low = [h - (h if v is None else v) for h, v in zip(heights, series.low, strict=True)]
            high = [(h if v is None else v) - h for h, v in zip(heights, series.high, strict=True)]
            errors = [[max(v, 0.0) for v in low], [max(v, 0.0) for v in high]]
        axes.bar(
            places, heights, width * 0.92, color=COLOURS[index % len(COLOURS)], yerr=errors,
            capsize=3, label=str(series.label),
        )  # fmt: skip
    turned = any(len(str(n)) > 8 for n in names) and len(names) > 4
    axes.set_xticks(range(len(names)), [str(n) for n in names],
                    rotation=30 if turned else 0, ha="right" if turned else "center")  # fmt: skip
    if chart.log_y:
        axes.set_yscale("log")


def _heat(axes: Any, chart: Chart, figure: Any) -> None:
    import matplotlib as mpl
    import numpy as np

    grid = np.array([[np.nan if v is None else v for v in row] for row in chart.grid], dtype=float)
    colours = mpl.colormaps["Blues"].with_extremes(bad="#e2e8f0")
    image = axes.imshow(np.ma.masked_invalid(grid), cmap=colours, aspect="auto")
    figure.colorbar(image, ax=axes, shrink=0.85)
    axes.grid(visible=False)
    if chart.row_labels:
        axes.set_yticks(range(len(chart.row_labels)), chart.row_labels)
    if chart.column_labels:
        axes.set_xticks(range(len(chart.column_labels)), chart.column_labels)
    if grid.size <= 64:
        top = np.nanmax(np.abs(grid)) if np.isfinite(grid).any() else 0.0
        for (row, column), value in np.ndenumerate(grid):
            if np.isfinite(value):
                colour = "white" if top and abs(value) > 0.6 * top else "black"
                axes.text(column, row, f"{value:.3g}", ha="center", va="center", color=colour)


def write(chart: Chart, folder: Path) -> tuple[Path, Path]:
    """Write a chart as SVG and PNG into a folder; returns both paths."""
    svg, png = draw(chart)
    paths = folder / f"{chart.name}.svg", folder / f"{chart.name}.png"
    paths[0].write_text('<?xml version="1.0" encoding="utf-8"?>\n' + svg, encoding="utf-8")
    paths[1].write_bytes(png)
    return paths
