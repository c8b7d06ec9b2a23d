"""Where an endpoint is, and the head of every request to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from evals.errors import WorkloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    tls: bool
    host: str
    port: int
    prefix: str
    """Of the path, without a trailing `/v1`."""

    @classmethod
    def parse(cls, base_url: str) -> Address:
        hint = "Give it as http://host:port or https://host, with or without /v1."
        if set(base_url) & set("@?#"):
            # Before anything that may echo it, and not even in part: what stands there may be a secret.
            raise WorkloadError(
                f"The address holds a user, a query or a fragment. {hint} A key belongs in a variable that "
                f"api_key_env names."
            )
        try:
            parts = urlsplit(base_url)
            port = parts.port
        except ValueError as error:
            raise WorkloadError(f"The address {base_url!r} cannot be read: {error}. {hint}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or not is_printable(parts.netloc + parts.path):
            raise WorkloadError(f"The address {base_url!r} is no HTTP address. {hint}")
        tls = parts.scheme == "https"
        return cls(
            tls=tls,
            host=parts.hostname,
            port=port or (443 if tls else 80),
            prefix=parts.path.rstrip("/").removesuffix("/v1").rstrip("/"),
        )

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"

    def target(self, path: str) -> str:
        return self.prefix + path


def fixed_head(address: Address, headers: Mapping[str, str]) -> bytes:
    """The header lines that all requests share; the caller's own win."""
    fields = {
        "host": address.authority,
        "user-agent": "rigbench",
        "accept": "text/event-stream, application/json",
        "content-type": "application/json",
    }
    for name, value in headers.items():
        if not name or not is_printable(name) or set(name) & set(" :") or not is_printable(value):
            # The value is not echoed: it may be a key.
            raise WorkloadError(f"The header {name!r} cannot be sent: it holds other than printable ASCII characters.")
        fields[name.lower()] = value
    return "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode("ascii")


def is_printable(text: str) -> bool:
    return text.isascii() and text.isprintable()
