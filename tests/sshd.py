"""A real sshd on loopback, as the user who runs the tests; its keys and files lie in a folder of the test."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

SSHD = shutil.which("sshd") or ("/usr/sbin/sshd" if Path("/usr/sbin/sshd").exists() else None)


class Sshd:
    """Started by `with`; `stop`, `start` and `drop_connections` make its bad days."""

    def __init__(self, folder: Path, *, shell_output: str = "", force_shell: str | None = None) -> None:
        assert SSHD, "The tests need sshd: apt-get install openssh-server"
        self.folder = folder
        self.user = getpass.getuser()
        self.key = folder / "client_key"
        self.host_key = folder / "host_key"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        for path in (self.key, self.host_key):
            if not path.exists():
                keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
                subprocess.run(keygen, check=True, stdin=subprocess.DEVNULL)
        (folder / "authorized_keys").write_text((folder / "client_key.pub").read_text())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        lines = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.host_key}",
            "PidFile none",
            f"AuthorizedKeysFile {folder}/authorized_keys",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "MaxSessions 100",
            "MaxStartups 100",
            "PermitRootLogin prohibit-password",
        ]
        if shell_output or force_shell:
            # What a login shell does with a command, for shells that this user does not have as login shell.
            shell = force_shell or "/bin/sh"
            wrapper = folder / "login_shell"
            wrapper.write_text(f'#!/bin/sh\nprintf "%s" {shell_output!r}\nexec {shell} -c "$SSH_ORIGINAL_COMMAND"\n')
            wrapper.chmod(0o755)
            lines.append(f"ForceCommand {wrapper}")
        (folder / "config").write_text("\n".join(lines) + "\n")

    @property
    def address(self) -> str:
        return f"{self.user}@127.0.0.1:{self.port}"

    @property
    def fingerprint(self) -> str:
        listed = subprocess.run(
            ["ssh-keygen", "-l", "-f", f"{self.host_key}.pub"], check=True, capture_output=True, text=True
        )
        return listed.stdout.split()[1]

    def start(self) -> None:
        assert SSHD
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with (self.folder / "sshd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(self.folder / "config")],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        for _ in range(400):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.025)
        raise AssertionError((self.folder / "sshd.log").read_text())

    def stop(self) -> None:
        """End the listener and every connection, as a reboot does; what runs detached goes on."""
        if self._process is not None:
            self.drop_connections()
            self._process.terminate()
            self._process.wait()
            self._process = None

    def drop_connections(self) -> None:
        """Cut every open connection; the listener stays."""
        assert self._process
        for pid in _descendants(self._process.pid):
            try:
                if Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
                    os.kill(pid, signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                continue

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(folder.name))
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found
