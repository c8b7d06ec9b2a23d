"""A headless Chromium that a test can ask: how wide is the page, what did the console say, what does it look like.

It is driven over the pipe of the DevTools protocol, with a profile of its own and no host to talk to.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "no chromium on this machine (Debian: apt-get install chromium)"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe"),
)
TIMEOUT_S = 90.0
DESKTOP, PHONE = 1280, 390


class Page:
    """One tab, loaded from a file at one width."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        """What the console, the policy or the script complained of, errors and warnings alike."""
        self.fetched: list[str] = []

    def open(self, path: Path, width: int, *, dark: bool = False, script: bool = True) -> None:
        """Load the file in a fresh tab; returns when it is laid out."""
        target = self._call("Target.createTarget", {"url": "about:blank"}, session=None)["targetId"]
        attached = self._call("Target.attachToTarget", {"targetId": target, "flatten": True}, session=None)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", {"features": [scheme]})
        self._call("Emulation.setScriptExecutionDisabled", {"value": not script})
        self.complaints, self.fetched = [], []
        self._call("Page.navigate", {"url": path.as_uri()})
        self._until("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        found = self._call("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The page in its whole height."""
        shot = self._call("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("Page.printToPDF", {})["data"]))

    def _call(self, method: str, params: dict[str, Any] | None = None, session: str | None = "own") -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _until(self, event: str) -> None:
        while self._next().get("method") != event:
            pass

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "chromium did not answer"
            chunk = os.read(self._receive, 1 << 16)
            assert chunk, "chromium ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Log.entryAdded":
            self.complaints.append(str(params["entry"]["text"]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(params["args"]))
        elif method == "Network.requestWillBeSent":
            self.fetched.append(params["request"]["url"])


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser whose profile lies in `folder`; ended afterwards with all its processes."""
    assert CHROMIUM is not None, MISSING
    from_us, to_browser = os.pipe()
    from_browser, to_us = os.pipe()
    # The browser reads from descriptor 3 and writes to 4.
    script = f'exec 3<&{from_us} 4>&{to_us} && exec "$@"'
    environment = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}"],
        pass_fds=(from_us, to_us),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    os.close(from_us)
    os.close(to_us)
    try:
        yield Page(to_browser, from_browser)
    finally:
        os.close(to_browser)
        os.close(from_browser)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
