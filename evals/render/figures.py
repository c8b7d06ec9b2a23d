"""The charts of one report, or of two beside each other, drawn once for SVG and PNG.

With `evals/render/canvas.py` the only modules that import the drawing library, in a child process of their own.
"""
# The drawing library leaves its keywords untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator, StrMethodFormatter

from evals.render import curves as figure_of
from evals.render.canvas import INK, MARKERS, MUTED, PAPER, SERIES, Chart
from evals.render.curves import Curve, Figure, PromptSpeed, curves, prompt_speeds, tell_apart
from evals.report import Report

HEIGHT_IN = 3.5
BAR_IN = 0.27
MAX_LINES = len(SERIES)
MAX_DOTS = 600
MAX_BARS = 30
MAX_LABEL = 44
LOG_ABOVE = {"ttft": 10.0, "throughput": 200.0}
"""Largest over smallest value, above which an axis goes by decades; throughput is read by its height, so later."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    label: str
    curve: Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bars:
    label: str
    speeds: list[PromptSpeed]


def charts(reports: Sequence[Report]) -> list[Chart]:
    """Those that there are values for, of one report or of two that are told apart by their arms."""
    names = tell_apart(reports) if len(reports) > 1 else [""]
    lines = [
        _Line(label=_cut(f"{curve.label} ({name})" if name else curve.label), curve=curve)
        for report, name in zip(reports, names, strict=True)
        for curve in curves(report)
    ]
    bars = [_Bars(label=_cut(name), speeds=prompt_speeds(report)) for report, name in zip(reports, names, strict=True)]
    found = (_throughput(lines), _ttft(lines), _speed(bars), _kept_by_prompt(bars), _kept_by_load(lines))
    return [chart for chart in found if chart is not None]


def _throughput(lines: Sequence[_Line]) -> Chart | None:
    figure = figure_of.total_output_tok_s
    shown, note = _shown(lines, figure)
    if not shown:
        return None

    def draw(axes: Axes) -> None:
        for number, line in enumerate(shown):
            _repeats(axes, line.curve, figure, number, _dots(shown))
            _median_line(axes, line, figure, number)
        _cross_out(axes, shown, figure)
        _concurrency_axis(axes, shown)
        _value_axis(axes, _values(shown, figure), "total output (tokens/s)", LOG_ABOVE["throughput"])
        _legend(axes)

    return Chart(
        name="throughput",
        title="Throughput against concurrency",
        note=f"Lines: median over the repeats. {_marks(shown)}{_survivors(shown, figure)}{note}",
        alt=f"Total output tokens per second against concurrency. {_extreme(shown, figure, 'tokens/s', max)}",
        height_in=HEIGHT_IN,
        draw=draw,
    )


def _ttft(lines: Sequence[_Line]) -> Chart | None:
    shown, note = _shown(lines, figure_of.ttft_ms_p50)
    if not shown:
        return None
    values = _values(shown, figure_of.ttft_ms_p50) + _values(shown, figure_of.ttft_ms_p99)

    def draw(axes: Axes) -> None:
        for number, line in enumerate(shown):
            _median_line(axes, line, figure_of.ttft_ms_p50, number)
            _median_line(axes, line, figure_of.ttft_ms_p99, number, dashed=True)
        _cross_out(axes, shown, figure_of.ttft_ms_p99)
        _concurrency_axis(axes, shown)
        _value_axis(axes, values, "time to first token (ms)", LOG_ABOVE["ttft"])
        styles = [
            Line2D([], [], color=MUTED, label="p50"),
            Line2D([], [], color=MUTED, linestyle=(0, (4, 2)), label="p99"),
        ]
        _legend(axes, styles)

    return Chart(
        name="ttft",
        title="Time to first token against concurrency",
        note="p50 and p99 over the requests of a cell, each the median over the repeats."
        f"{_survivors(shown, figure_of.ttft_ms_p99)}{note}",
        alt="Time to first token, p50 and p99, against concurrency. "
        + _extreme(shown, figure_of.ttft_ms_p99, "ms p99", max),
        height_in=HEIGHT_IN,
        draw=draw,
    )


def _speed(bars: Sequence[_Bars]) -> Chart | None:
    return _bar_chart(
        bars,
        lambda speed: speed.decode_tok_s,
        lambda speed: speed.repeats,
        name="speed",
        title="Decode speed by prompt",
        axis="decode (tokens/s)",
        note="One request at a time. Bars: mean over the repeats; dots: the repeats.",
    )


def _kept_by_prompt(bars: Sequence[_Bars]) -> Chart | None:
    drafting = [series for series in bars if any(speed.acceptance_percent is not None for speed in series.speeds)]
    return _bar_chart(
        drafting,
        lambda speed: speed.acceptance_percent,
        lambda speed: figure_of.finite(map(figure_of.acceptance_percent, speed.cells)),
        name="acceptance",
        title="Drafted tokens that were kept",
        axis="accepted of drafted tokens (%)",
        note="Bars: over all repeats of a prompt; dots: the repeats.",
        limit=100.0,
    )


def _kept_by_load(lines: Sequence[_Line]) -> Chart | None:
    figure = figure_of.acceptance_percent
    shown, note = _shown(lines, figure)
    if not shown:
        return None

    def draw(axes: Axes) -> None:
        for number, line in enumerate(shown):
            _repeats(axes, line.curve, figure, number, _dots(shown))
            _median_line(axes, line, figure, number)
        _cross_out(axes, shown, figure)
        _concurrency_axis(axes, shown)
        axes.set_ylim(0, 105)
        axes.set_ylabel("accepted of drafted tokens (%)")
        _legend(axes)

    return Chart(
        name="acceptance",
        title="Drafted tokens that were kept",
        note=f"Lines: median over the repeats. {_marks(shown)}{_survivors(shown, figure)}{note}",
        alt=f"Share of drafted tokens that were accepted, against concurrency. {_extreme(shown, figure, '%', max)}",
        height_in=HEIGHT_IN,
        draw=draw,
    )


def _bar_chart(
    bars: Sequence[_Bars],
    value_of: Callable[[PromptSpeed], float | None],
    repeats_of: Callable[[PromptSpeed], list[float]],
    *,
    name: str,
    title: str,
    axis: str,
    note: str,
    limit: float | None = None,
) -> Chart | None:
    every = list(dict.fromkeys(s.prompt for series in bars for s in series.speeds if value_of(s) is not None))
    prompts = every[:MAX_BARS]
    if not prompts:
        return None
    by_prompt = [{speed.prompt: speed for speed in series.speeds} for series in bars]
    thick = 0.8 / len(bars)
    top = limit or max(
        value for speeds in by_prompt for s in speeds.values() for value in (value_of(s) or 0.0, *repeats_of(s))
    )

    def draw(axes: Axes) -> None:
        for number, (series, speeds) in enumerate(zip(bars, by_prompt, strict=True)):
            colour = SERIES[number]
            label: str | None = series.label
            for row, prompt in enumerate(prompts):
                speed = speeds.get(prompt)
                value = value_of(speed) if speed else None
                if speed is None or value is None:
                    continue
                y = row + (number - (len(bars) - 1) / 2) * thick
                axes.barh(y, value, thick * 0.9, color=colour, label=label)
                label = None
                dots = repeats_of(speed)[:MAX_DOTS]
                if len(dots) > 1:
                    axes.plot(
                        dots,
                        [y] * len(dots),
                        "o",
                        color=PAPER,
                        markeredgecolor=INK,
                        markersize=3.2,
                        markeredgewidth=0.7,
                    )
                inside = value > 0.2 * top
                axes.annotate(
                    _figure(value),
                    (0.0 if inside else max([value, *dots]), y),
                    (6, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=9,
                    color=PAPER if inside else INK,
                    fontweight="bold",
                )
        axes.set_yticks(range(len(prompts)), [_cut(prompt, 24) for prompt in prompts])
        axes.set_ylim(len(prompts) - 0.45, -0.55)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlim(0, (top or 1.0) * (1.03 if limit is None else 1.0))
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_xlabel(axis)
        if len(bars) > 1:
            _legend(axes)

    told = [
        f"{_clean(prompt)} {' and '.join(_figure(value_of(s[prompt])) for s in by_prompt if prompt in s)}"
        for prompt in prompts
    ]
    left = f" The first {len(prompts)} of {len(every)} prompts." if len(every) > len(prompts) else ""
    return Chart(
        name=name,
        title=title,
        note=note + left,
        alt=f"{title}, {axis}: {'; '.join(told[:8])}.",
        height_in=max(1.9, 0.95 + len(prompts) * (BAR_IN * len(bars) + 0.12)),
        draw=draw,
    )


def _shown(lines: Sequence[_Line], figure: Figure) -> tuple[list[_Line], str]:
    """The lines that have values, as many as can be told apart, and a word on those left out."""
    having = [line for line in lines if any(point.values(figure) for point in line.curve.points)]
    left = f" The first {MAX_LINES} of {len(having)} shapes; the table has all." if len(having) > MAX_LINES else ""
    if having and len(having) < len(lines):
        left += f" Without a figure: {'; '.join(line.label for line in lines if line not in having)}."[:300]
    return having[:MAX_LINES], left


def _values(lines: Sequence[_Line], figure: Figure) -> list[float]:
    return [value for line in lines for point in line.curve.points for value in point.values(figure)]


def _dots(lines: Sequence[_Line]) -> bool:
    """Whether the repeats are few enough to be seen as points."""
    return sum(len(point.cells) for line in lines for point in line.curve.points) <= MAX_DOTS


def _marks(lines: Sequence[_Line]) -> str:
    if all(len(point.cells) < 2 for line in lines for point in line.curve.points):
        return "One repeat each."
    return "Small dots: the repeats." if _dots(lines) else "Bars: range of the repeats."


def _median_line(axes: Axes, line: _Line, figure: Figure, number: int, *, dashed: bool = False) -> None:
    found = [(point.concurrency, point.median(figure)) for point in line.curve.points]
    pairs = [(x, y) for x, y in found if y is not None]
    axes.plot(
        [x for x, _ in pairs],
        [y for _, y in pairs],
        color=SERIES[number],
        marker=MARKERS[number] if len(pairs) <= 40 else "",
        markerfacecolor=PAPER if dashed else SERIES[number],
        markeredgecolor=SERIES[number],
        linestyle=(0, (4, 2)) if dashed else "-",
        label=None if dashed else line.label,
        zorder=3,
    )


def _cross_out(axes: Axes, lines: Sequence[_Line], figure: Figure) -> None:
    """Mark the points that hold a cell which is not ok: what is drawn there is over the survivors."""
    for x, y in _partial(lines, figure):
        axes.plot([x], [y], "x", color=INK, markersize=8, markeredgewidth=1.4, zorder=4)


def _partial(lines: Sequence[_Line], figure: Figure) -> list[tuple[int, float]]:
    found = [
        (point.concurrency, point.median(figure))
        for line in lines
        for point in line.curve.points
        if point.ok_cells < len(point.cells)
    ]
    return [(x, y) for x, y in found if y is not None]


def _survivors(lines: Sequence[_Line], figure: Figure) -> str:
    return (
        " Crossed out: not every cell there is ok, so the figure is over what succeeded."
        if _partial(lines, figure)
        else ""
    )


def _repeats(axes: Axes, curve: Curve, figure: Figure, number: int, dots: bool) -> None:
    for point in curve.points:
        values = point.values(figure)
        if len(values) < 2:
            continue
        x = [point.concurrency] * len(values)
        if dots:
            axes.plot(x, values, "o", color=SERIES[number], markersize=3.4, alpha=0.5, markeredgewidth=0, zorder=2)
        else:
            axes.vlines(point.concurrency, min(values), max(values), color=SERIES[number], alpha=0.45, zorder=2)


def _concurrency_axis(axes: Axes, lines: Sequence[_Line]) -> None:
    measured = sorted({point.concurrency for line in lines for point in line.curve.points})
    if measured[0] > 0 and measured[-1] / measured[0] >= 8:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    step = -(-len(measured) // 10)
    ticks = measured[::step]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    if len(measured) == 1:
        axes.set_xlim(measured[0] - 1, measured[0] + 1)
    axes.set_xlabel("concurrency (requests at once)")


def _value_axis(axes: Axes, values: Sequence[float], label: str, log_above: float) -> None:
    """From 0, or by decades where small values would else lie on the ground."""
    low, high = min(values), max(values)
    if low > 0 and high / low > log_above:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if high / low < 1000 else (1.0,), numticks=12))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(min(0.0, low), (high if high > 0 else 1.0) * 1.08)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
    axes.set_ylabel(label)


def _legend(axes: Axes, more: Sequence[Line2D] = ()) -> None:
    handles, labels = axes.get_legend_handles_labels()
    handles = [*handles, *more]
    labels = [*labels, *(str(line.get_label()) for line in more)]
    if not labels:
        return
    columns = 1 if max(map(len, labels)) > 30 else 2 if max(map(len, labels)) > 18 or len(labels) == 2 else 3
    axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0.0, 1.03), ncols=columns)


def _extreme(lines: Sequence[_Line], figure: Figure, unit: str, choose: Callable[[list[float]], float]) -> str:
    found: list[str] = []
    for line in lines:
        medians = {point.median(figure): point.concurrency for point in line.curve.points}
        known = figure_of.finite(medians)
        if known:
            best = choose(known)
            found.append(f"{line.label}: highest {_figure(best)} {unit} at {medians[best]}")
    return "; ".join(found) + "."


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


def _clean(text: str) -> str:
    """Without what no XML can hold, and what turns the direction of writing."""
    return " ".join(_CONTROL.sub(" ", text).split())


def _cut(text: str, limit: int = MAX_LABEL) -> str:
    text = _clean(text)
    if text.startswith("_"):
        text = f" {text}"  # else no legend would name it
    return text if len(text) <= limit else f"{text[: limit - 1]}\u2026"
