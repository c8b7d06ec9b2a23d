"""`python -m tests.bench [--json] [NAME...]`.

Nothing here is a test: figures depend on the machine and on what else runs there, so the exit code is 0 whatever they
are. Targets are the design's; best peers are those seen for the design, on another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from tests.bench.client import client_cpu, delivered, ttft
from tests.bench.figure import Figure
from tests.bench.firehose import firehose
from tests.bench.server import local_exec, server_start, tool_latency

PEERS = "design figures of 2026-11"

BENCHES: dict[str, tuple[Callable[[], Iterator[Figure]], str]] = {
    "client-cpu": (client_cpu, "CPU of the streaming client per 1,000 chunks, with uvloop and without (10 s)"),
    "delivered": (delivered, "throughput that the client measures, against the server's schedule (5 s)"),
    "ttft": (ttft, "error of the time to first token, alone and in a burst (10 s)"),
    "firehose": (firehose, "chunks that one core takes without delays, with orjson and without (10 s)"),
    "server-start": (server_start, "CPU from spawning the server to tools/list, and the size of that list (10 s)"),
    "tool-latency": (tool_latency, "worst answer of each read tool while a sweep runs here on a tiny model (60 s)"),
    "local-exec": (local_exec, "time of a command over the local connection (1 s)"),
}


def measure(names: Sequence[str]) -> list[Figure]:
    figures: list[Figure] = []
    for name in names:
        sys.stderr.write(f"measuring {name} ...\n")
        bench, _ = BENCHES[name]
        try:
            figures += bench()
        except Exception as error:  # noqa: BLE001 - a part that breaks must not take the others' figures with it
            figures.append(Figure(name=name, what=name, note=f"{type(error).__name__}: {error}"))
    return figures


def table(figures: Sequence[Figure]) -> str:
    rows = [("what", "measured", "target", "ratio", "met", "best peer", "note")]
    for figure in figures:
        target = "-" if figure.target is None else f"{'>=' if figure.at_least else '<='} {number(figure.target)}"
        rows.append(
            (
                figure.what,
                "-" if figure.value is None else f"{number(figure.value)} {figure.unit}",
                target,
                "-" if figure.ratio is None else f"{figure.ratio:.2f}",
                {True: "yes", False: "NO", None: "-"}[figure.met],
                figure.best_peer or "-",
                figure.note,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = [
        "  ".join([*(word.ljust(width) for word, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    listed = "\n".join(f"  {name:14}{words}" for name, (_, words) in BENCHES.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measure what rigbench itself costs, beside the design's targets. The exit code is 0 whatever the "
        "figures are; run it on an idle machine.",
        epilog=f"names:\n{listed}\n\nThe ratio is measured by target: below 1 is good for '<=', above 1 for '>='.\n"
        f"Best peer: {PEERS}, measured on another machine.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="what to measure; default: everything below")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of a table")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in BENCHES]
    if unknown:
        parser.error(f"unknown name {unknown[0]!r}; there are {', '.join(BENCHES)}")
    before = machine()
    figures = measure(options.names or list(BENCHES))
    if options.json:
        found = [{**asdict(figure), "ratio": figure.ratio, "met": figure.met} for figure in figures]
        sys.stdout.write(json.dumps({"machine": before, "best_peer_source": PEERS, "figures": found}, indent=2) + "\n")
        return 0
    sys.stdout.write(f"{table(figures)}\n\nBest peer: {PEERS}. ")
    sys.stdout.write(
        f"This machine: {before['cores']} cores, Python {before['python']}, {before['system']}, "
        f"load {before['load_1min']:g} at the start.\n"
    )
    if before["load_1min"] > 0.5 * (before["cores"] or 1):
        sys.stdout.write("It was not idle: the figures are worse than it can.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
