"""From the records of a burst to the figures of its cell. Pure."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence

from evals.record import RequestRecord
from evals.report import Cell, CellStatus, Distribution, Lengths, RequestCounts
from evals.self_check import ClientCheck
from evals.statistics import Weighted, mean, percentile
from evals.workload import CellKey

FAILED_SHARE = 0.01
"""Above this share of failed requests a cell, or a unit, has failed."""
MAX_REASON = 500
FIGURES = (
    *("ttft_ms", "itl_ms", "icl_ms", "tpot_ms", "e2e_ms"),
    *("decode_tok_s", "e2e_tok_s", "total_output_tok_s"),
    *("cached_tokens", "drafted", "accepted"),
)
NO_USAGE = "the server's stream told no usage"


def summarise(values: Iterable[float]) -> Distribution | None:
    """None for no samples."""
    ordered = sorted(values)
    middle = mean(ordered)
    if middle is None:
        return None
    p50, p90, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Distribution(mean=middle, p50=p50, p90=p90, p99=p99, n=len(ordered))


def summarise_weighted(samples: Iterable[tuple[float, int]]) -> Distribution | None:
    """Of values with the number of times that each counts. None for no samples."""
    weighted = Weighted(samples)
    middle = weighted.mean()
    if middle is None:
        return None
    p50, p90, p99 = (weighted.percentile(share) for share in (0.5, 0.9, 0.99))
    return Distribution(mean=middle, p50=p50, p90=p90, p99=p99, n=len(weighted))


def ttft_ms(record: RequestRecord) -> float | None:
    if record.sent_ns is None or not record.chunk_ns:
        return None
    return (record.chunk_ns[0] - record.sent_ns) / 1e6


def e2e_ms(record: RequestRecord) -> float | None:
    if record.sent_ns is None or not record.chunk_ns:
        return None
    return (record.chunk_ns[-1] - record.sent_ns) / 1e6


def icl_ms(record: RequestRecord) -> list[float]:
    return [(later - earlier) / 1e6 for earlier, later in itertools.pairwise(record.chunk_ns)]


def itl_ms(record: RequestRecord) -> list[tuple[float, int]]:
    """Time per token and number of tokens, for each later chunk that brought any.

    Each counts as many times as it has tokens: all times together and the TTFT add up to the end-to-end time. Not one
    value for each token, since the number of tokens is what a server says, and the length of a list is our memory.
    """
    if record.chunk_tokens is None:
        return []
    values: list[tuple[float, int]] = []
    waited = 0.0
    for gap, tokens in zip(icl_ms(record), record.chunk_tokens[1:], strict=False):
        # A chunk may bring text and no token of its own; its gap then belongs to the next token.
        waited += gap
        if tokens > 0:
            values.append((waited / tokens, tokens))
            waited = 0.0
    return values


def tpot_ms(record: RequestRecord) -> float | None:
    """Over the tokens that chunks brought: an end token that is counted and has no chunk took no time we saw."""
    gaps = itl_ms(record)
    tokens = sum(count for _, count in gaps)
    time_ms = math.fsum(gap * count for gap, count in gaps)
    return time_ms / tokens if tokens > 0 and time_ms > 0 else None


def e2e_tok_s(record: RequestRecord) -> float | None:
    time_ms = e2e_ms(record)
    return record.output_tokens / time_ms * 1000 if record.output_tokens and time_ms else None


def total_output_tok_s(records: Sequence[RequestRecord]) -> float | None:
    """Failed requests count in the time, since they took part in the load, and not in the tokens."""
    tokens = [record.output_tokens for record in records if record.status == "ok"]
    sent = [record.sent_ns for record in records if record.sent_ns is not None]
    last = [record.chunk_ns[-1] for record in records if record.chunk_ns]
    if not tokens or None in tokens or not sent or not last or max(last) <= min(sent):
        return None
    if not any(tokens) or any(_tells_no_token(record) for record in records if record.status == "ok"):
        return None
    return sum(count for count in tokens if count is not None) / (max(last) - min(sent)) * 1e9


def _tells_no_token(record: RequestRecord) -> bool:
    """A usage of 0 beside chunks with content is no count."""
    return record.output_tokens == 0 and bool(record.chunk_ns)


def measure_cell(
    key: CellKey,
    records: Sequence[RequestRecord],
    *,
    client: ClientCheck | None = None,
    started_at: str | None = None,
    finished_at: str | None = None,
) -> Cell:
    """The cell of `records`: figures over its ok requests, failures counted, and a reason for each null."""
    ok = [record for record in records if record.status == "ok"]
    failures = Counter(_reason(record) for record in records if record.status == "failed")
    failed = failures.total()
    status: CellStatus = "ok"
    reason = None
    if not records or failed / len(records) > FAILED_SHARE:
        status = "failed"
        commonest = failures.most_common(1)
        reason = f"{failed} of {len(records)} requests failed: {commonest[0][0]}" if commonest else "nothing was sent"
    tpots = _present(tpot_ms(record) for record in ok)
    cached, drafted, accepted = (
        _total(getattr(record, name) for record in ok) for name in ("cached_tokens", "drafted", "accepted")
    )
    input_tokens = _lengths(key.input_len, [record.input_tokens for record in ok], exact=True)
    # Without a shape the reply ends where the model ends it, so a shorter one is no mismatch. A longer one always is.
    output_tokens = _lengths(key.output_len, [record.output_tokens for record in ok], exact=key.input_len is not None)
    cell = Cell(
        concurrency=key.concurrency,
        input_len=key.input_len,
        output_len=key.output_len,
        prompt=key.prompt,
        repeat=key.repeat,
        status=status,
        reason=reason,
        requests=RequestCounts(ok=len(ok), failed=failed),
        ttft_ms=summarise(_present(ttft_ms(record) for record in ok)),
        itl_ms=summarise_weighted(gap for record in ok for gap in itl_ms(record)),
        icl_ms=summarise(value for record in ok for value in icl_ms(record)),
        tpot_ms=summarise(tpots),
        e2e_ms=summarise(_present(e2e_ms(record) for record in ok)),
        decode_tok_s=mean([1000 / tpot for tpot in tpots]),
        e2e_tok_s=mean(_present(e2e_tok_s(record) for record in ok)),
        total_output_tok_s=total_output_tok_s(records) if ok else None,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached,
        drafted=drafted,
        accepted=accepted,
        failures=dict(failures.most_common()),
        client=client,
        started_at=started_at,
        finished_at=finished_at,
    )
    return cell.model_copy(update={"missing": _missing(cell, ok)})


def cell_without_requests(
    key: CellKey, status: CellStatus, reason: str, *, started_at: str | None = None, finished_at: str | None = None
) -> Cell:
    return Cell(
        concurrency=key.concurrency,
        input_len=key.input_len,
        output_len=key.output_len,
        prompt=key.prompt,
        repeat=key.repeat,
        status=status,
        reason=reason,
        input_tokens=Lengths(asked=key.input_len, got=None),
        output_tokens=Lengths(asked=key.output_len, got=None),
        started_at=started_at,
        finished_at=finished_at,
    )


def key_of(cell: Cell) -> CellKey:
    return CellKey(
        concurrency=cell.concurrency,
        input_len=cell.input_len,
        output_len=cell.output_len,
        prompt=cell.prompt,
        repeat=cell.repeat,
    )


def _reason(record: RequestRecord) -> str:
    # A server's words may be long, or hold half a surrogate pair, which no UTF-8 file takes.
    return (record.reason or "no reason given").encode("utf-8", "replace").decode()[:MAX_REASON]


def _present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _total(values: Iterable[int | None]) -> int | None:
    """The sum of those told; None where no request told any."""
    told = [value for value in values if value is not None]
    return sum(told) if told else None


def _lengths(asked: int | None, got: Sequence[int | None], *, exact: bool) -> Lengths:
    told = [value for value in got if value is not None]
    mismatched = sum(value != asked if exact else value > asked for value in told) if asked is not None else 0
    return Lengths(asked=asked, got=mean(told), mismatched=mismatched)


def _missing(cell: Cell, ok: Sequence[RequestRecord]) -> dict[str, str]:
    nulls = [name for name in FIGURES if getattr(cell, name) is None]
    nulls += [name for name in ("input_tokens", "output_tokens") if getattr(cell, name).got is None]
    return {name: _why(name, ok) for name in nulls}


def _why(name: str, ok: Sequence[RequestRecord]) -> str:
    if not ok:
        return "no request succeeded"
    if name in {"cached_tokens", "drafted", "accepted"}:
        return "the server's stream did not tell it"
    if name in {"input_tokens", "output_tokens", "e2e_tok_s", "total_output_tok_s"}:
        if name == "input_tokens" or any(record.output_tokens is None for record in ok):
            refused = [record.usage_reason for record in ok if record.usage_reason is not None]
            return refused[0] if refused else NO_USAGE
        if any(_tells_no_token(record) for record in ok):
            return "the server's usage told 0 tokens for a reply that has some"
        return "no token arrived"
    if name in {"ttft_ms", "e2e_ms"}:
        return "no token arrived"
    if all(len(record.chunk_ns) < 2 for record in ok):
        return "no request had more than one chunk"
    for record in ok:
        if record.chunk_tokens is None:
            return record.chunk_tokens_reason or "the stream did not tell the tokens of its chunks"
    return "no request brought a token after its first chunk"
