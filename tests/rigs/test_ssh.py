"""What SSH adds to the contract of a connection: whom we trust, and what happens when the way breaks."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rigs.errors import UnreachableError, UsageError
from rigs.host_keys import HostKeyError, KnownHosts, SshAddress, parse_address
from rigs.remote_job import RemoteJob
from rigs.serving import Step
from rigs.ssh import SshConnection
from tests.sshd import Sshd


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    with Sshd(tmp_path / "sshd") as sshd:
        yield sshd


def address_of(sshd: Sshd, **changes: object) -> SshAddress:
    address = parse_address(sshd.address, key=str(sshd.key), fingerprint=sshd.fingerprint)
    return address.model_copy(update=changes)


@asynccontextmanager
async def connected(address: SshAddress, known: Path, *others: Path) -> AsyncIterator[SshConnection]:
    connection = SshConnection(address, KnownHosts(known, others))
    yield connection
    await connection.close()


async def test_a_host_that_nobody_vouched_for_gets_nothing_and_its_fingerprint_is_shown(
    sshd: Sshd, tmp_path: Path
) -> None:
    async with connected(address_of(sshd, fingerprint=None), tmp_path / "known") as connection:
        with pytest.raises(HostKeyError, match="is not known; it shows the host key SHA256:") as raised:
            await connection.run(["true"])
    assert sshd.fingerprint in str(raised.value)
    assert not (tmp_path / "known").exists()
    assert "Accepted" not in (sshd.folder / "sshd.log").read_text()


async def test_a_fingerprint_makes_a_host_known_and_the_known_hosts_of_the_user_count_too(
    sshd: Sshd, tmp_path: Path
) -> None:
    async with connected(address_of(sshd), tmp_path / "known") as connection:
        await connection.run(["true"])
    async with connected(address_of(sshd, fingerprint=None), tmp_path / "known") as connection:
        await connection.run(["true"])
    theirs = tmp_path / "theirs"
    line = (sshd.folder / "host_key.pub").read_text().split()[:2]
    theirs.write_text(f"# a comment\n[127.0.0.1]:{sshd.port} {' '.join(line)}\n")
    async with connected(address_of(sshd, fingerprint=None), tmp_path / "other", theirs) as connection:
        assert (await connection.run(["true"])).exit_code == 0


async def test_a_changed_host_key_shows_both_fingerprints_and_ends_it(sshd: Sshd, tmp_path: Path) -> None:
    async with connected(address_of(sshd), tmp_path / "known") as connection:
        await connection.run(["true"])
    old = sshd.fingerprint
    sshd.stop()
    for path in (sshd.host_key, sshd.folder / "host_key.pub"):
        path.unlink()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(sshd.host_key)], check=True)
    sshd.start()
    for fingerprint in (None, old):
        async with connected(address_of(sshd, fingerprint=fingerprint), tmp_path / "known") as connection:
            with pytest.raises(HostKeyError) as raised:
                await connection.run(["true"])
        assert old in str(raised.value)
        assert sshd.fingerprint in str(raised.value)
    async with connected(address_of(sshd), tmp_path / "known") as connection:
        await connection.run(["true"])
    assert len((tmp_path / "known").read_text().splitlines()) == 1, "the confirmed key replaced the old one"


async def test_a_refused_key_a_missing_one_and_one_that_is_none_are_said(sshd: Sshd, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(stranger)], check=True)
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)], check=True)
    text = tmp_path / "text"
    text.write_text("no key")
    for key, words in (
        (stranger, "refused the key"),
        (locked, "locked by a passphrase"),
        (text, "no private key that can be read"),
        (tmp_path / "nothing", "no key file"),
    ):
        async with connected(address_of(sshd, key=str(key)), tmp_path / "known") as connection:
            with pytest.raises(UsageError, match=words):
                await connection.run(["true"])
    async with connected(address_of(sshd, user="nobody-here"), tmp_path / "known") as connection:
        with pytest.raises(UsageError, match="for the user 'nobody-here'"):
            await connection.run(["true"])


async def test_a_host_that_is_not_there_is_unreachable(sshd: Sshd, tmp_path: Path) -> None:
    sshd.stop()
    async with connected(address_of(sshd), tmp_path / "known") as connection:
        with pytest.raises(UnreachableError, match="cannot be reached"):
            await connection.run(["true"])
        with pytest.raises(UnreachableError):
            await connection.put(b"x", str(tmp_path / "x"))
        sshd.start()
        assert (await connection.run(["echo", "back"])).text == "back\n"


async def test_a_cut_connection_is_made_anew_and_a_cut_command_is_said(sshd: Sshd, tmp_path: Path) -> None:
    async with connected(address_of(sshd), tmp_path / "known") as connection:
        await connection.run(["true"])
        running = asyncio.create_task(connection.run(["sleep", "100"]))
        await asyncio.sleep(0.5)
        sshd.drop_connections()
        with pytest.raises(UnreachableError):
            await running
        for _ in range(3):
            assert (await connection.run(["echo", "again"])).text == "again\n"
            sshd.drop_connections()


async def test_a_detached_job_does_not_notice_that_sshd_was_restarted(sshd: Sshd, tmp_path: Path) -> None:
    async with connected(address_of(sshd), tmp_path / "known") as connection:
        job = RemoteJob(connection, str(tmp_path / "job"))
        script = "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.3; done; exit 3"
        await job.start_or_attach([Step(name="work", argv=("sh", "-c", script))])
        sshd.stop()
        sshd.start()
        state = await job.poll()
        for _ in range(100):
            state = await job.poll()
            if state.status == "exited":
                break
            await asyncio.sleep(0.1)
        assert (state.status, state.exit_code) == ("exited", 3)
        assert await job.read_log() == b"".join(b"line %d\n" % number for number in range(1, 7))


async def test_a_jump_host_leads_there_and_its_key_is_checked_too(sshd: Sshd, tmp_path: Path) -> None:
    with Sshd(tmp_path / "jump") as jump:
        hop = parse_address(jump.address, key=str(jump.key), fingerprint=jump.fingerprint)
        async with connected(address_of(sshd, jumps=(hop,)), tmp_path / "known") as connection:
            assert (await connection.run(["echo", "there"])).text == "there\n"
            await connection.put(os.urandom(3_000_000), str(tmp_path / "big"))
            assert (tmp_path / "big").stat().st_size == 3_000_000
        assert "Accepted publickey" in (jump.folder / "sshd.log").read_text()
        unknown = hop.model_copy(update={"fingerprint": None})
        async with connected(address_of(sshd, jumps=(unknown,)), tmp_path / "empty") as connection:
            with pytest.raises(HostKeyError, match=str(jump.port)):
                await connection.run(["true"])


async def test_a_login_shell_that_runs_nothing_is_said(tmp_path: Path) -> None:
    with Sshd(tmp_path / "sshd", force_shell="/bin/echo This account is not available;") as sshd:
        async with connected(address_of(sshd), tmp_path / "known") as connection:
            with pytest.raises(Exception, match="does not run commands; it said 'This account is not available"):
                await connection.run(["true"])


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("me@rig", "rig", 22),
        ("me@rig.example:2222", "rig.example", 2222),
        ("me@10.0.0.7", "10.0.0.7", 22),
        ("me@[fe80::1]:22", "fe80::1", 22),
    ],
)
def test_addresses_are_read(text: str, host: str, port: int) -> None:
    address = parse_address(text, key="k")
    assert (address.user, address.host, address.port) == ("me", host, port)


@pytest.mark.parametrize(
    "text", ["rig", "@rig", "me@", "me@rig:0", "me@rig:99999", "me@-oProxy", "a b@c", "me@x;rm", ""]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not of the form user@host"):
        parse_address(text, key="k")
    with pytest.raises(UsageError, match="not of the form SHA256"):
        parse_address("a@b", key="k", fingerprint="md5:00")
