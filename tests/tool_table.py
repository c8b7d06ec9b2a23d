"""`python -m tests.tool_table README.md`: write the README's table of tools from the code."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

from mcp_server.server import TOOLS

BEGIN, END = "<!-- tools: made by `make docs` -->", "<!-- /tools -->"


def table() -> str:
    """One row a tool, in the server's order."""
    rows = ["| tool | what it does | changes |", "|---|---|---|"]
    for tool in TOOLS:
        hints = tool.annotations
        what = "nothing" if hints.read_only_hint else "ends or deletes" if hints.destructive_hint else "adds"
        first = (inspect.getdoc(tool.function) or "").split("\n\n")[0].replace("\n", " ")
        rows.append(f"| `{tool.function.__name__}` | {first} | {what} |")
    return "\n".join(rows)


def with_table(text: str) -> str:
    """Return the README with the table between its marks made anew."""
    return re.sub(
        f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: f"{BEGIN}\n{table()}\n{END}", text, flags=re.DOTALL
    )


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
