"""Is the engine ready? Only an answer with tokens in it says so; `/health` says that a port is open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from rigs.serving import RequestFields

QUESTION = "Say hello in one short sentence."
MAX_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstAnswer:
    tokens: int
    """0 while there is no right answer yet."""
    waiting_for: str
    """What is missing, in words."""


async def first_answer(base_url: str, model: str, fields: RequestFields) -> FirstAnswer:
    """Ask one short question; never raises for an engine that is not there yet."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        **fields.body,
        **fields.exact_length,
    }
    try:
        async with httpx.AsyncClient(timeout=120.0, trust_env=False) as client:
            response = await client.post(f"{base_url}/v1/chat/completions", json=body)
    except httpx.HTTPError as error:
        return FirstAnswer(tokens=0, waiting_for=f"no connection yet ({type(error).__name__})")
    try:
        answer: Any = response.json()
    except ValueError:
        return FirstAnswer(tokens=0, waiting_for=f"HTTP {response.status_code} without JSON")
    if response.is_error or response.is_redirect:
        return FirstAnswer(tokens=0, waiting_for=f"HTTP {response.status_code}: {_message(answer)}")
    return _judge(answer)


def _judge(answer: Any) -> FirstAnswer:
    """Ready means text, and a count of tokens on both sides that fits the request."""
    try:
        message = answer["choices"][0]["message"]
        text = message.get("content") or message.get("reasoning_content") or message.get("reasoning") or ""
        prompt, completion = answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]
    except (KeyError, IndexError, TypeError):
        return FirstAnswer(tokens=0, waiting_for="an answer without choices or usage")
    if not text:
        return FirstAnswer(tokens=0, waiting_for="an answer without text")
    if not (prompt > 0 and 0 < completion <= MAX_TOKENS):
        return FirstAnswer(tokens=0, waiting_for=f"an answer that counts {prompt} + {completion} tokens")
    return FirstAnswer(tokens=int(completion), waiting_for="")


def _message(answer: Any) -> str:
    try:
        return str(answer["error"]["message"])[:200]
    except (KeyError, TypeError):
        return str(answer)[:200]
