"""The border to MCP: what a tool is, and how our errors look from the other side.

Only a `ToolError` keeps its words on the way to the client. Expected failures are `RigsError` and become one here;
whatever else comes up is a fault of ours, and goes to the log with its traceback.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import ValidationError

from rigs.errors import RigsError

EXPECTED = (RigsError, ValidationError, UnicodeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function and what a client is told of it."""

    function: Callable[..., Any]
    title: str
    annotations: ToolAnnotations


def tool(
    title: str,
    *,
    read_only: bool = False,
    destructive: bool = False,
    idempotent: bool = False,
    open_world: bool = False,
) -> Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function; its name, docstring and annotated parameters are what a model reads.

    `destructive`: it ends or deletes something. `open_world`: it reaches beyond this machine and its rigs.
    """

    def make(function: Callable[..., Any]) -> Tool:
        return Tool(
            function=_translated(function),
            title=title,
            annotations=ToolAnnotations(
                read_only_hint=read_only,
                destructive_hint=destructive,
                idempotent_hint=idempotent or read_only,
                open_world_hint=open_world,
            ),
        )

    return make


def _translated(function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapped_async(*args: Any, **kwargs: Any) -> Any:
            try:
                return await function(*args, **kwargs)
            except EXPECTED as error:
                raise ToolError(in_words(error)) from error

        return wrapped_async

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except EXPECTED as error:
            raise ToolError(in_words(error)) from error

    return wrapped


def in_words(error: RigsError | ValidationError | UnicodeError) -> str:
    """Say what is wrong, without the library's own frame around it."""
    if isinstance(error, RigsError):
        return str(error)
    if isinstance(error, UnicodeError):
        return "An argument holds half a character (a lone surrogate), which is no text. Send it as UTF-8."
    return "; ".join(
        f"{'.'.join(str(part) for part in item['loc']) or 'arguments'}: {item['msg']}, got {str(item['input'])[:80]!r}"
        for item in error.errors(include_url=False)[:5]
    )


def slim_input(schema: Any) -> Any:
    """Drop the titles that pydantic makes of every field's name: half the size of a schema, and no news to anybody."""
    return _map(schema, lambda node: {key: value for key, value in node.items() if not _is_title(key, value)})


def slim_output(schema: Any) -> Any:
    """The same, with short forms for what may be null; only programs read it, and all know these forms.

    Inputs keep the long form: some model services take no list of types.
    """

    def shorten(node: dict[str, Any]) -> dict[str, Any]:
        node = {key: value for key, value in node.items() if not _is_title(key, value) and key != "default"}
        choices = node.get("anyOf")
        if isinstance(choices, list) and {"type": "null"} in choices:
            rest = [choice for choice in choices if choice != {"type": "null"}]  # pyright: ignore[reportUnknownVariableType] - any JSON
            # A choice of words would have to name null among them; it keeps the long form.
            named = any("enum" in choice or "const" in choice for choice in rest)  # pyright: ignore[reportUnknownVariableType] - any JSON
            if len(rest) == 1 and not named and isinstance(rest[0].get("type"), str):  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] - any JSON
                del node["anyOf"]
                node = {**node, **rest[0], "type": [rest[0]["type"], "null"]}
        return node

    return _map(schema, shorten)


def _is_title(key: str, value: Any) -> bool:
    return key == "title" and isinstance(value, str)


def _map(node: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    if isinstance(node, dict):
        return change({key: _map(value, change) for key, value in node.items()})  # pyright: ignore[reportUnknownVariableType] - any JSON
    if isinstance(node, list):
        return [_map(item, change) for item in node]  # pyright: ignore[reportUnknownVariableType] - any JSON
    return node
