"""A machine behind SSH as a rig.

What SSH really does, and what follows from it here: a command goes through the user's login shell, whatever that is
(`shell_words`); Nagle's algorithm costs 40 ms a command (switched off); a channel that the garbage collector closes
can take the whole connection down (every channel is closed by hand); `is_active` stays true after the other side died
(any error of the transport counts as a broken connection); a command outlives its channel (it is ended by its group).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import secrets
import select
import socket
import tempfile
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import paramiko
from paramiko.pkey import UnknownKeyType

from rigs.connection import CommandResult
from rigs.errors import CommandError, RemoteError, RigFullError, UnreachableError, UsageError
from rigs.host_keys import KnownHosts, SshAddress
from rigs.shell_words import command_line

CONNECT_TIMEOUT_S: Final = 20.0
KEEPALIVE_S: Final = 15
DEAD_AFTER_MS: Final = 30_000
"""How long sent bytes may go unanswered before the system gives the connection up; Linux only."""
CHUNK: Final = 32_768

_TRANSPORT_ERRORS = (paramiko.SSHException, EOFError, OSError)


class SshConnection:
    """`Connection` to a machine by SSH: no agent, no guessed keys, no host key taken on trust. Reconnects by itself.

    A command whose channel could not be opened is tried once more on a new connection. One that was under way when the
    connection broke is not: `UnreachableError` leaves that to the caller, who knows whether it may run twice.
    """

    def __init__(self, address: SshAddress, known_hosts: KnownHosts) -> None:
        self._address = address
        self._known_hosts = known_hosts
        self._lock = threading.Lock()
        self._transports: list[paramiko.Transport] = []
        self._forwards: dict[int, _Forward] = {}

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> CommandResult:
        return await asyncio.to_thread(self._run, tuple(argv), stdin, {"LC_ALL": "C.UTF-8", **(env or {})}, timeout_s)

    async def put(self, content: bytes | Path, path: str, *, mode: int = 0o644) -> None:
        await asyncio.to_thread(self._put, content, path, mode)

    async def get(self, path: str, local: Path) -> None:
        await asyncio.to_thread(self._get, path, local)

    async def read_from(self, path: str, offset: int, limit: int = 1 << 20) -> bytes:
        script = '[ -e "$1" ] || exit 0; tail -c "+$2" -- "$1" | head -c "$3"'
        result = await self.run(["sh", "-c", script, "sh", path, str(offset + 1), str(limit)])
        return result.check(f"reading {path}").stdout

    async def forward(self, port: int) -> int:
        return await asyncio.to_thread(self._forward, port)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    # --- commands ---------------------------------------------------------------------------------------------------

    def _run(self, argv: tuple[str, ...], stdin: bytes, env: Mapping[str, str], timeout_s: float) -> CommandResult:
        mark = f"rigbench-{secrets.token_hex(8)}"
        channel = self._open_channel()
        exchange = _Exchange(channel, stdin, time.monotonic() + timeout_s)
        try:
            with self._translated():
                channel.exec_command(command_line(argv, env, mark))
                finished = exchange.run()
        finally:
            channel.close()
        pid, stdout = _after_mark(bytes(exchange.stdout), mark)
        _, stderr = _after_mark(bytes(exchange.stderr), mark)
        if not finished:
            self._end_group(pid)
            raise CommandError(argv, None, f"It took longer than {timeout_s:g} s and was ended.")
        exit_code = channel.recv_exit_status()
        if exit_code == -1:
            raise UnreachableError(f"The connection to {self._address} broke while a command was under way.")
        if pid is None:
            said = (bytes(exchange.stdout) + bytes(exchange.stderr)).decode("utf-8", "replace").strip()[-300:]
            raise RemoteError(
                f"The login shell of {self._address} does not run commands; it said {said!r}. "
                "See that `ssh HOST true` works without a terminal."
            )
        return CommandResult(argv=argv, exit_code=exit_code, stdout=stdout, stderr=stderr)

    def _end_group(self, pid: int | None) -> None:
        """End what a command left: sshd gives each its own session, so its group holds nothing else."""
        if pid is None:
            return
        script = (
            f"group=$(ps -o pgid= -p {pid} 2>/dev/null | tr -d ' '); "
            f"[ -n \"$group\" ] || group=$(sed 's/.*) //' /proc/{pid}/stat 2>/dev/null | cut -d' ' -f3); "
            '[ "${group:-0}" -gt 1 ] && kill -s KILL -- "-$group"'
        )
        with contextlib.suppress(RemoteError):
            channel = self._open_channel()
            try:
                with self._translated():
                    channel.exec_command(command_line(["sh", "-c", script], {}, "x"))
                    _Exchange(channel, b"", time.monotonic() + 10).run()
            finally:
                channel.close()

    # --- files ------------------------------------------------------------------------------------------------------

    def _put(self, content: bytes | Path, path: str, mode: int) -> None:
        size, digest = _identity(content)
        mark = f"rigbench-{secrets.token_hex(8)}"
        argv = ["sh", "-c", _RECEIVE, "sh", path, f"{mode:o}", str(size), digest]
        channel = self._open_channel()
        try:
            with self._translated():
                channel.exec_command(command_line(argv, {"LC_ALL": "C"}, mark))
                with _opened(content) as source:
                    # A receiver that fails early closes its side: what it said is worth more than the broken pipe.
                    with contextlib.suppress(OSError):
                        while chunk := source.read(CHUNK * 8):
                            channel.sendall(chunk)
                    channel.shutdown_write()
                exchange = _Exchange(channel, b"", time.monotonic() + 600)
                exchange.run()
                exit_code = channel.recv_exit_status()
        finally:
            channel.close()
        _, said = _after_mark(bytes(exchange.stderr), mark)
        if exit_code == 0:
            return
        words = said.decode("utf-8", "replace").strip()[-300:]
        if exit_code == -1:
            raise UnreachableError(f"The connection to {self._address} broke while {path} was being written.")
        if "No space left" in words or "Disk quota" in words:
            raise RigFullError(f"No space left on {self._address} for {path}. Free some, then try again.")
        raise RemoteError(f"Cannot write {path} on {self._address}: {words or f'exit code {exit_code}'}.")

    def _get(self, path: str, local: Path) -> None:
        result = self._run(("cat", "--", path), b"", {"LC_ALL": "C"}, 600.0)
        result.check(f"fetching {path}")
        local.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=local.parent, prefix=f".{local.name[:64]}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(result.stdout)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(local)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    # --- ports ------------------------------------------------------------------------------------------------------

    def _forward(self, port: int) -> int:
        with self._lock:
            if port not in self._forwards:
                self._forwards[port] = _Forward(self, port)
            return self._forwards[port].local_port

    def open_tunnel(self, port: int) -> paramiko.Channel:
        """Open one connection to a port of the rig's loopback."""
        with self._translated():
            return self._transport().open_channel(
                "direct-tcpip", ("127.0.0.1", port), ("127.0.0.1", 0), timeout=CONNECT_TIMEOUT_S
            )

    # --- the connection ---------------------------------------------------------------------------------------------

    def _open_channel(self) -> paramiko.Channel:
        """Open a session; the only place that tries again, since nothing was sent yet."""
        try:
            with self._translated():
                return self._transport().open_session(timeout=CONNECT_TIMEOUT_S)
        except UnreachableError:
            with self._translated():
                return self._transport().open_session(timeout=CONNECT_TIMEOUT_S)

    def _transport(self) -> paramiko.Transport:
        with self._lock:
            if self._transports and self._transports[-1].is_active():
                return self._transports[-1]
            self._drop()
            self._transports = self._connect()
            return self._transports[-1]

    def _connect(self) -> list[paramiko.Transport]:
        hops = [*self._address.jumps, self._address]
        opened: list[paramiko.Transport] = []
        try:
            for hop in hops:
                sock = (
                    _dial(hop)
                    if not opened
                    else opened[-1].open_channel(
                        "direct-tcpip", (hop.host, hop.port), ("127.0.0.1", 0), timeout=CONNECT_TIMEOUT_S
                    )
                )
                opened.append(_log_in(hop, sock, self._known_hosts))
        except BaseException:
            for transport in reversed(opened):
                transport.close()
            raise
        return opened

    @contextlib.contextmanager
    def _translated(self) -> Generator[None]:
        """Turn whatever the transport raises into `UnreachableError`, and give the connection up."""
        try:
            yield
        except RemoteError:
            raise
        except _TRANSPORT_ERRORS as error:
            with self._lock:
                self._drop()
            raise UnreachableError(
                f"{self._address} cannot be reached: {str(error) or type(error).__name__}. "
                "See that the machine is up and `ssh` to it works; the same call may then be made again."
            ) from error

    def _drop(self) -> None:
        for transport in reversed(self._transports):
            transport.close()
        self._transports = []

    def _close(self) -> None:
        for forward in self._forwards.values():
            forward.close()
        self._forwards.clear()
        with self._lock:
            self._drop()


_RECEIVE = """\
umask 077
folder=$(dirname -- "$1") && mkdir -p -- "$folder" || exit 1
part=$(mktemp -- "$folder/.part.XXXXXXXX") || exit 1
trap 'rm -f -- "$part"' EXIT
cat >"$part" || exit 1
[ "$(wc -c <"$part")" -eq "$3" ] || { echo "the file came incomplete" >&2; exit 1; }
sum=$({ sha256sum || shasum -a 256 || openssl dgst -sha256 -r; } <"$part" 2>/dev/null | cut -c1-64)
[ -z "$sum" ] || [ "$sum" = "$4" ] || { echo "the file came damaged" >&2; exit 1; }
chmod "$2" "$part" && mv -f -- "$part" "$1"
"""


class _Exchange:
    """Feeds a command and collects what it says, in one thread: both outputs share one window, so both are drained."""

    def __init__(self, channel: paramiko.Channel, stdin: bytes, deadline: float) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self._channel = channel
        self._rest = memoryview(stdin)
        self._deadline = deadline

    def run(self) -> bool:
        """Go on until the command has ended; False when its time is over."""
        channel = self._channel
        if not self._rest:
            channel.shutdown_write()
        while True:
            moved = self._send() + self._receive()
            if not moved and channel.exit_status_ready() and channel.eof_received:
                return True
            if not moved and channel.closed:
                return True
            if not moved:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    return False
                # Wakes for data, the end and the close; room to send is announced by nothing.
                select.select([channel], [], [], min(left, 0.005 if self._rest else 0.5))

    def _send(self) -> int:
        if not self._rest or not self._channel.send_ready():
            return 0
        try:
            sent = self._channel.send(bytes(self._rest[:CHUNK]))
        except OSError:  # it does not read its input; what it says tells more
            self._rest = self._rest[:0]
            return 0
        self._rest = self._rest[sent:]
        if not self._rest:
            self._channel.shutdown_write()
        return sent

    def _receive(self) -> int:
        moved = 0
        if self._channel.recv_ready():
            chunk = self._channel.recv(CHUNK * 8)
            self.stdout += chunk
            moved += len(chunk)
        if self._channel.recv_stderr_ready():
            chunk = self._channel.recv_stderr(CHUNK * 8)
            self.stderr += chunk
            moved += len(chunk)
        return moved


class _Forward:
    """A listening port here whose connections end at a port of the rig's loopback."""

    def __init__(self, connection: SshConnection, port: int) -> None:
        self._connection = connection
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.local_port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, name=f"forward-{port}", daemon=True).start()

    def close(self) -> None:
        # Closing alone leaves the accept waiting.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                channel = self._connection.open_tunnel(self._port)
            except RemoteError:
                return  # the client sees a closed connection, as from a port where nobody listens
            with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                _pump(client, channel)
            channel.close()


def _pump(client: socket.socket, channel: paramiko.Channel) -> None:
    sources: list[socket.socket | paramiko.Channel] = [client, channel]
    while sources:
        readable, _, _ = select.select(sources, [], [])
        if client in readable:
            data = client.recv(CHUNK)
            if data:
                channel.sendall(data)
            else:
                channel.shutdown_write()
                sources.remove(client)
        if channel in readable:
            data = channel.recv(CHUNK)
            if not data:
                return
            client.sendall(data)


def _dial(hop: SshAddress) -> socket.socket:
    sock = socket.create_connection((hop.host, hop.port), timeout=CONNECT_TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_MS)
    return sock


def _log_in(hop: SshAddress, sock: socket.socket | paramiko.Channel, known_hosts: KnownHosts) -> paramiko.Transport:
    """Greet, prove the host, then ourselves.

    Raises:
        UsageError: the host's key is unknown or another one, or ours is refused.
    """
    transport = paramiko.Transport(sock)
    transport.banner_timeout = transport.auth_timeout = CONNECT_TIMEOUT_S
    transport.daemon = True
    try:
        known_hosts.prefer_known_types(transport, hop)
        transport.start_client(timeout=CONNECT_TIMEOUT_S)
        known_hosts.check(hop, transport.get_remote_server_key())
        transport.auth_publickey(hop.user, _key(hop))
    except paramiko.AuthenticationException as error:
        transport.close()
        raise UsageError(
            f"{hop} refused the key {hop.key} for the user {hop.user!r}. See that its public half is in "
            f"~/.ssh/authorized_keys there, and that the user is the right one."
        ) from error
    except BaseException:
        transport.close()
        raise
    transport.set_keepalive(KEEPALIVE_S)
    return transport


def _key(hop: SshAddress) -> paramiko.PKey:
    path = Path(hop.key).expanduser()
    try:
        return paramiko.PKey.from_path(path)
    except FileNotFoundError as error:
        raise UsageError(f"There is no key file {hop.key} on this machine.") from error
    except (paramiko.PasswordRequiredException, TypeError) as error:  # the latter from the library below paramiko
        raise UsageError(
            f"The key {hop.key} is locked by a passphrase, and unattended runs cannot type one. Give a key without."
        ) from error
    except (OSError, ValueError, paramiko.SSHException, UnknownKeyType) as error:
        raise UsageError(f"{hop.key} is no private key that can be read: {error}.") from error


def _after_mark(output: bytes, mark: str) -> tuple[int | None, bytes]:
    """Return the process id behind the mark, and what follows it; what stands before came from the login shell."""
    before, found, after = output.partition(mark.encode())
    if not found:
        return None, before
    line, _, rest = after.partition(b"\n")
    return int(line) if line.strip().isdigit() else None, rest


def _identity(content: bytes | Path) -> tuple[int, str]:
    with _opened(content) as source:
        digest = hashlib.sha256()
        size = 0
        while chunk := source.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


@contextlib.contextmanager
def _opened(content: bytes | Path) -> Generator[BinaryIO]:
    if isinstance(content, Path):
        with content.open("rb") as file:
            yield file
    else:
        yield io.BytesIO(content)
