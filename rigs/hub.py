"""Files of model repositories on the hub: which bytes a revision means, and getting all of them despite cuts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from rigs.checkpoints import HubSource
from rigs.errors import CheckpointError, UsageError
from rigs.facts import Border
from rigs.transfer import FreeBytes, Progress, free_bytes, require_room, writing

PUBLIC_HUB: Final = "https://huggingface.co"
MAX_FAILURES: Final = 5
"""In a row, without a byte of progress between them."""

_TIMEOUT: Final = httpx.Timeout(15.0, read=60.0)
_LONGEST_DELAY_S: Final = 60.0

T = TypeVar("T")


class _Peer(BaseModel):
    """JSON of the hub, of which we read a little."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Lfs(_Peer):
    sha256: str
    size: int


class _Sibling(_Peer):
    rfilename: str
    size: int | None = None
    lfs: _Lfs | None = None


class _RepositoryInfo(_Peer):
    sha: str
    siblings: tuple[_Sibling, ...] = ()


class _PartFacts(Border):
    """Beside a part: what it is a part of, so that only the same file is continued."""

    url: str
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """One file at one commit: bytes that no longer change."""

    repo: str
    commit: str
    filename: str
    size_bytes: int | None
    sha256: str | None
    """As the hub tells it; None for small files outside large file storage."""


class _TryAgainError(Exception):
    """A failure that may pass. `after_s`: what the server asked for."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s


class Hub:
    """A client of one hub. Failures that may pass are tried again, with growing delays."""

    def __init__(
        self,
        endpoint: str = PUBLIC_HUB,
        token: SecretStr | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        free: FreeBytes = free_bytes,
    ) -> None:
        if not endpoint.startswith(("https://", "http://")):
            raise UsageError(
                f"HF_ENDPOINT is {endpoint!r}, which is no http address. Correct it in the rig's environment."
            )
        self._endpoint = endpoint.rstrip("/")
        self._token = token
        self._sleep = sleep
        self._free = free
        self._client = httpx.Client(timeout=_TIMEOUT, follow_redirects=True, headers=self._headers())

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """The hub and the token that the hub's own tools would take there."""
        return cls(environ.get("HF_ENDPOINT") or PUBLIC_HUB, _token(environ))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def find(self, source: HubSource) -> HubFile:
        """What the revision means today.

        Raises:
            CheckpointError: no such repository, revision or file; gated; or the hub cannot be reached.
        """
        where = f"{source.repo} at revision {source.revision}"
        url = f"{self._endpoint}/api/models/{quote(source.repo)}/revision/{quote(source.revision, safe='')}"

        def ask() -> _RepositoryInfo:
            response = self._client.get(url, params={"blobs": "true"})
            self._judge(response, where)
            try:
                return _RepositoryInfo.model_validate_json(response.content)
            except ValidationError as error:
                raise CheckpointError(f"{self._endpoint} gave no answer of a hub about {where}.") from error

        info = self._patiently(ask, where, lambda: 0)
        sibling = _choose(info.siblings, source, where)
        return HubFile(
            repo=source.repo,
            commit=info.sha,
            filename=sibling.rfilename,
            size_bytes=sibling.lfs.size if sibling.lfs else sibling.size,
            sha256=sibling.lfs.sha256 if sibling.lfs else None,
        )

    def download(self, file: HubFile, part: Path, progress: Progress) -> None:
        """Fill `part`, going on where an earlier attempt at the same file ended. Whether it is right, a hash must tell.

        Raises:
            CheckpointError: refused, gone, or cut again and again without progress.
            RigFullError: no room.
        """
        where = f"{file.filename} of {file.repo} at {file.commit[:12]}"
        facts = _facts_of(part)
        if facts is None or facts.url != self._url(file) or _size(part) > (file.size_bytes or _size(part)):
            part.unlink(missing_ok=True)
        if file.size_bytes is not None:
            require_room(part.parent, file.size_bytes - _size(part), self._free, where)
        self._patiently(lambda: self._attempt(file, part, progress, where), where, lambda: _size(part))
        _facts_file(part).unlink(missing_ok=True)

    def _attempt(self, file: HubFile, part: Path, progress: Progress, where: str) -> None:
        if file.size_bytes is not None and _size(part) == file.size_bytes:
            return
        facts = _facts_of(part)
        # A weak tag ("W/...") does not promise equal bytes: then the file starts anew.
        etag = facts.etag if facts and facts.etag.startswith('"') else None
        offset = _size(part) if etag else 0
        headers = {"Accept-Encoding": "identity"}
        if etag and offset:
            headers |= {"Range": f"bytes={offset}-", "If-Range": etag}
        with self._client.stream("GET", self._url(file), headers=headers) as response:
            continued = response.status_code == HTTPStatus.PARTIAL_CONTENT
            if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or (
                continued and not _continues(response, etag, offset)
            ):
                part.unlink(missing_ok=True)
                raise _TryAgainError("the file changed between two attempts")
            self._judge(response, where)
            with writing(part, file.size_bytes, file.filename):
                if not continued:  # the whole file: the server has no ranges, or another file than before
                    part.unlink(missing_ok=True)
                facts = _PartFacts(url=self._url(file), etag=response.headers.get("ETag", ""))
                _facts_file(part).write_text(facts.model_dump_json(), encoding="utf-8")
                _append_body(response, part, file.size_bytes, progress)
        if file.size_bytes is not None and _size(part) < file.size_bytes:
            raise _TryAgainError("the server ended the file early")
        if file.size_bytes is not None and _size(part) > file.size_bytes:
            sent = _size(part)
            part.unlink()
            raise CheckpointError(f"{where}: the hub says {file.size_bytes} bytes, but sent at least {sent}.")

    def _url(self, file: HubFile) -> str:
        return f"{self._endpoint}/{quote(file.repo)}/resolve/{file.commit}/{quote(file.filename)}"

    def _judge(self, response: httpx.Response, where: str) -> None:
        status = response.status_code
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            had = "The token there was not accepted for it." if self._token else "No token was found there."
            raise CheckpointError(
                f"The hub refuses {where} ({status}): it is gated or private, or does not exist. Accept its licence on "
                "the hub, then give the rig a token: HF_TOKEN in its environment, or the file "
                f"~/.cache/huggingface/token. {had}"
            )
        if status == HTTPStatus.NOT_FOUND:
            raise CheckpointError(f"The hub has no {where} (404). Check the repository's and the revision's name.")
        if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise _TryAgainError(f"the hub answered {status}", _retry_after_s(response))
        if status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            raise CheckpointError(f"The hub answered {status} for {where}.")

    def _patiently(self, attempt: Callable[[], T], where: str, size: Callable[[], int]) -> T:
        failures, furthest = 0, size()
        while True:
            try:
                return attempt()
            except _TryAgainError as error:
                reason, asked_s = error, error.after_s
            except httpx.TransportError as error:
                reason, asked_s = error, 0.0
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise CheckpointError(f"Cannot fetch {where} from {self._endpoint}: {error}.") from error
            # Compared with the furthest point: a file that starts anew each time makes no progress.
            failures = 1 if size() > furthest else failures + 1
            furthest = max(furthest, size())
            if failures >= MAX_FAILURES:
                raise CheckpointError(
                    f"Gave up on {where} from {self._endpoint} after {failures} failures in a row: "
                    f"{str(reason) or type(reason).__name__}. What came so far is kept; call again to go on."
                ) from reason
            self._sleep(min(max(asked_s, 2.0 ** (failures - 1)), _LONGEST_DELAY_S))

    def _headers(self) -> dict[str, str]:
        headers = {"User-Agent": "rigbench"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token.get_secret_value()}"
        return headers


def _token(environ: Mapping[str, str]) -> SecretStr | None:
    text = environ.get("HF_TOKEN", "").strip()
    if not text:
        home = environ.get("HF_HOME") or "~/.cache/huggingface"
        try:
            text = (Path(home).expanduser() / "token").read_text(encoding="utf-8").strip()
        except (OSError, RuntimeError):
            return None
    return SecretStr(text) if text else None


def _choose(siblings: tuple[_Sibling, ...], source: HubSource, where: str) -> _Sibling:
    ggufs = [sibling for sibling in siblings if sibling.rfilename.endswith(".gguf")]
    listed = ", ".join(sibling.rfilename for sibling in ggufs) or "none"
    if source.filename is None:
        if len(ggufs) != 1:
            raise CheckpointError(f"{where} should hold one .gguf file, but holds {len(ggufs)}: {listed}.")
        return ggufs[0]
    for sibling in siblings:
        if sibling.rfilename == source.filename:
            return sibling
    raise CheckpointError(f"{where} holds no {source.filename}. Its .gguf files: {listed}.")


def _append_body(response: httpx.Response, part: Path, size_bytes: int | None, progress: Progress) -> None:
    done = _size(part)
    progress.begin("download", size_bytes, done)
    with part.open("ab") as output:
        for chunk in response.iter_raw():
            output.write(chunk)
            done += len(chunk)
            progress.at(done)
            if size_bytes is not None and done > size_bytes:
                break  # more than announced: the caller refuses it
        output.flush()
        os.fsync(output.fileno())


def _facts_of(part: Path) -> _PartFacts | None:
    try:
        return _PartFacts.model_validate_json(_facts_file(part).read_bytes())
    except (OSError, ValidationError):
        return None


def _continues(response: httpx.Response, etag: str | None, offset: int) -> bool:
    """Some servers ignore If-Range, so both sides of its promise are looked at."""
    starts_there = response.headers.get("Content-Range", "").startswith(f"bytes {offset}-")
    return starts_there and response.headers.get("ETag") == etag


def _facts_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _retry_after_s(response: httpx.Response) -> float:
    """Seconds only; a date is rare and not worth a clock."""
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isdigit() else 0.0
