"""What every `Connection` must do; the cases run over each implementation."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rigs.connection import Connection
from rigs.errors import CommandError, RemoteError
from rigs.host_keys import KnownHosts, parse_address
from rigs.local import LocalConnection
from rigs.ssh import SshConnection
from tests.sshd import Sshd

HOSTILE = [
    "a b",
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    "*",
    "\\",
    "éßü",
    "-n",
    "new\nline",
    '"',
    "&& touch pwned",
]


SHELLS = {
    "ssh": None,
    "ssh, a shell that talks": "/bin/sh",
    "ssh, fish": "/usr/bin/fish",
    "ssh, tcsh": "/usr/bin/tcsh",
    "ssh, busybox": "/bin/busybox sh",
}


@pytest.fixture(scope="module", params=["local", *SHELLS])
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd | None]:
    """None: this machine; else the sshd in front of it."""
    if request.param == "local":
        yield None
        return
    shell = SHELLS[request.param]
    if shell and not Path(shell.split()[0]).exists():
        pytest.skip(f"{shell} is not installed")
    talk = "Welcome to \\$HOME! 42% off `today`\n" if shell else ""
    with Sshd(tmp_path_factory.mktemp("sshd"), shell_output=talk, force_shell=shell) as sshd:
        yield sshd


@pytest.fixture
async def connection(way: Sshd | None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Connection]:
    if way is None:
        yield LocalConnection()
        return
    address = parse_address(way.address, key=str(way.key), fingerprint=way.fingerprint)
    connection = SshConnection(address, KnownHosts(tmp_path_factory.mktemp("known") / "known_hosts"))
    yield connection
    await connection.close()


async def test_words_arrive_as_they_are(connection: Connection) -> None:
    result = await connection.run(["printf", "%s\\0", *HOSTILE])
    assert result.stdout.decode().split("\0")[:-1] == HOSTILE
    assert result.exit_code == 0


async def test_an_exit_code_is_a_result_and_check_turns_it_into_an_error(connection: Connection) -> None:
    result = await connection.run(["sh", "-c", "echo out; echo why >&2; exit 3"])
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"why\n")
    with pytest.raises(CommandError, match="making tea: exit code 3. why"):
        result.check("making tea")


async def test_a_program_that_does_not_exist_is_127(connection: Connection) -> None:
    with pytest.raises(CommandError) as raised:
        (await connection.run(["no-such-program-anywhere"])).check()
    assert raised.value.exit_code == 127


async def test_a_command_over_its_time_is_ended_with_its_children(connection: Connection, tmp_path: Path) -> None:
    script = f"sleep 300 & echo $! > {tmp_path}/child; wait"
    with pytest.raises(CommandError, match="longer than 4 s"):
        await connection.run(["sh", "-c", script], timeout_s=4)
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not _runs(child):
            break
        await asyncio.sleep(0.05)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


async def test_stdin_and_environment_reach_the_command(connection: Connection) -> None:
    result = await connection.run(["sh", "-c", 'cat; printf "%s" "$WORD"'], stdin=b"in ", env={"WORD": "it's $HOME"})
    assert result.stdout == b"in it's $HOME"


async def test_large_output_on_both_streams_does_not_block(connection: Connection) -> None:
    result = await connection.run(["sh", "-c", "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2"])
    assert (len(result.stdout), len(result.stderr)) == (3_000_000, 3_000_000)


async def test_put_makes_folders_and_get_brings_the_same_bytes(connection: Connection, tmp_path: Path) -> None:
    content = os.urandom(300_000)
    there = str(tmp_path / "a b/$c/file")
    await connection.put(content, there, mode=0o600)
    assert Path(there).stat().st_mode & 0o777 == 0o600
    await connection.get(there, tmp_path / "back/file")
    assert (tmp_path / "back/file").read_bytes() == content
    await connection.put(tmp_path / "back/file", there)
    assert Path(there).read_bytes() == content
    assert [path.name for path in Path(there).parent.iterdir()] == ["file"], "no temporary file stays"


async def test_a_reader_never_sees_half_a_file(connection: Connection, tmp_path: Path) -> None:
    there = str(tmp_path / "file")
    await connection.put(b"x" * 4_000_000, there)
    writing = asyncio.create_task(connection.put(b"y" * 4_000_000, there))
    seen: set[bytes] = set()
    while not writing.done():
        text = await asyncio.to_thread(Path(there).read_bytes)
        seen.add(text[:1] + b"%d" % len(set(text)) + b"/%d" % len(text))
        await asyncio.sleep(0)
    await writing
    assert seen <= {b"x1/4000000", b"y1/4000000"}


async def test_getting_what_is_not_there_names_it(connection: Connection, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="nothing-here"):
        await connection.get(str(tmp_path / "nothing-here"), tmp_path / "x")
    assert not (tmp_path / "x").exists()


async def test_put_below_a_file_says_what_is_wrong(connection: Connection, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RemoteError, match="file/below"):
        await connection.put(b"", str(tmp_path / "file/below"))


async def test_reading_goes_on_from_an_offset(connection: Connection, tmp_path: Path) -> None:
    there = tmp_path / "log"
    assert await connection.read_from(str(there), 0) == b""
    there.write_bytes(b"0123456789")
    assert await connection.read_from(str(there), 4, 3) == b"456"
    assert await connection.read_from(str(there), 10) == b""
    assert await connection.read_from(str(there), 99) == b""


async def test_a_forwarded_port_answers(connection: Connection) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        port = await connection.forward(server.sockets[0].getsockname()[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b"hello"
        writer.close()
        await writer.wait_closed()
    await connection.close()


async def test_commands_run_side_by_side(connection: Connection) -> None:
    began = time.monotonic()
    await asyncio.gather(*(connection.run(["sleep", "1"]) for _ in range(8)))
    assert time.monotonic() - began < 6, "eight one-second commands, one after the other, take eight seconds"
