"""Whom we talk to over SSH: an address, and the keys that its host may show. Never blind trust.

A host is known by a fingerprint that the user gave, or by a line of the known_hosts files: the user's own, and ours,
which holds the keys that a fingerprint confirmed.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from rigs.errors import UsageError
from rigs.facts import Border

if TYPE_CHECKING:
    import paramiko

FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_ADDRESS = re.compile(r"(?P<user>[A-Za-z0-9._][A-Za-z0-9._-]*)@(?P<host>[A-Za-z0-9][A-Za-z0-9._:-]*|\[[A-Fa-f0-9:]+\])")


class SshAddress(Border):
    """One host to log in to, by way of others where there are jumps."""

    host: str
    user: str
    port: int = Field(default=22, ge=1, le=65535)
    key: str
    """Path of the private key on this machine."""
    fingerprint: str | None = None
    """`SHA256:...` of the host's key, where the user gave it."""
    jumps: tuple[SshAddress, ...] = ()
    """In the order of the way there."""

    def __str__(self) -> str:
        return f"{self.user}@{self.host}" + (f":{self.port}" if self.port != 22 else "")

    @property
    def known_as(self) -> str:
        """The name in known_hosts files."""
        return self.host if self.port == 22 else f"[{self.host}]:{self.port}"


class HostKeyError(UsageError):
    """The host is not known, or shows another key than the known one. Nothing was sent to it."""


def parse_address(text: str, *, port: int = 22, key: str, fingerprint: str | None = None) -> SshAddress:
    """Read `user@host` or `user@host:port`.

    Raises:
        UsageError: it is not of that form.
    """
    head, colon, tail = text.rpartition(":")
    if colon and tail.isdigit() and not head.endswith(":"):
        text, port = head, int(tail)
    match = _ADDRESS.fullmatch(text)
    if match is None or not 1 <= port <= 65535:
        raise UsageError(f"The address {text!r} is not of the form user@host or user@host:port.")
    if fingerprint is not None and not FINGERPRINT.fullmatch(fingerprint):
        raise UsageError(
            f"The fingerprint {fingerprint!r} is not of the form SHA256:..., as `ssh-keygen -l -f KEY.pub` prints it."
        )
    host = match["host"].removeprefix("[").removesuffix("]")
    return SshAddress(host=host, user=match["user"], port=port, key=key, fingerprint=fingerprint)


def fingerprint_of(key: paramiko.PKey) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")


class KnownHosts:
    """The host keys in known_hosts files; `own` is the file that confirmed keys are written to."""

    def __init__(self, own: Path, others: Iterable[Path] = ()) -> None:
        self._own = own
        self._others = tuple(others)

    def prefer_known_types(self, transport: paramiko.Transport, address: SshAddress) -> None:
        """Ask the host for a key of a type that we know, since it may have several and show another one first."""
        known = [key.get_name() for key in self._keys(address)]
        if known:
            options = transport.get_security_options()
            first = [name for name in options.key_types if name in known or ("rsa" in name and "ssh-rsa" in known)]
            options.key_types = (*first, *(name for name in options.key_types if name not in first))

    def check(self, address: SshAddress, key: paramiko.PKey) -> None:
        """Accept a known key, or one with the fingerprint that the user gave; the latter is then known.

        Raises:
            HostKeyError: any other.
        """
        shown = fingerprint_of(key)
        if address.fingerprint is not None:
            if address.fingerprint != shown:
                raise HostKeyError(
                    f"{address.known_as} shows the host key {shown}, and {address.fingerprint} was expected. "
                    "Nothing was sent. Either the machine was set up anew, or this is another machine."
                )
            self._write(address, key)
            return
        known = self._keys(address)
        if any(other == key for other in known):
            return
        if any(other.get_name() == key.get_name() for other in known):
            expected = ", ".join(fingerprint_of(other) for other in known if other.get_name() == key.get_name())
            raise HostKeyError(
                f"The host key of {address.known_as} has changed: it shows {shown}, and {expected} is known. Nothing "
                "was sent. If you set the machine up anew, give the new fingerprint, or remove its old line from "
                "known_hosts."
            )
        raise HostKeyError(
            f"{address.known_as} is not known; it shows the host key {shown} ({key.get_name()}). Compare it with "
            f"`ssh-keygen -l -f /etc/ssh/ssh_host_*_key.pub` there, then give it as fingerprint={shown!r}."
        )

    def _keys(self, address: SshAddress) -> list[paramiko.PKey]:
        import paramiko

        found: list[paramiko.PKey] = []
        for path in (self._own, *self._others):
            try:
                hosts = paramiko.HostKeys(str(path))
            except (OSError, paramiko.SSHException):
                continue  # not there, or not a file of that kind: it makes nobody known
            entries = hosts.lookup(address.known_as)
            found += list(entries.values()) if entries else []
        return found

    def _write(self, address: SshAddress, key: paramiko.PKey) -> None:
        if any(other == key for other in self._keys(address)):
            return
        self._own.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lines = self._own.read_text(encoding="utf-8").splitlines() if self._own.exists() else []
        # A confirmed key replaces what we knew of this host before.
        kept = [line for line in lines if line.split(" ")[:2] != [address.known_as, key.get_name()]]
        kept.append(f"{address.known_as} {key.get_name()} {key.get_base64()}")
        temporary = self._own.with_suffix(".part")
        temporary.write_text("\n".join(kept) + "\n", encoding="utf-8")
        temporary.chmod(0o600)
        temporary.replace(self._own)
