"""What every test stands on: asyncio for coroutine tests, and no host but this one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

LOOPBACK = ("127.", "::1", "localhost")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, whatever the random order of the others: at the end one process would wait for another's."""
    items.sort(key=lambda item: "test_death" not in item.nodeid)


@pytest.fixture(autouse=True)
def no_host_but_this_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A connection or a look-up that leaves this machine fails the test that made it."""
    tried: list[str] = []
    connect, connect_ex, getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def check(host: object) -> None:
        if isinstance(host, bytes):
            host = host.decode()
        if isinstance(host, str) and host and not host.startswith(LOOPBACK):
            tried.append(host)
            raise AssertionError(f"A test tried to reach {host}.")

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple):
            check(address[0])
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        if isinstance(address, tuple):
            check(address[0])
        return connect_ex(self, address)

    def guarded_getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        check(host)
        return getaddrinfo(host, *args, **kwargs)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_getaddrinfo)
    yield
    assert not tried, f"Reached for {tried}"
