"""A hub on loopback that can be told to misbehave. Its answers have the form of the real one's."""

import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "5f3b0c9d8e7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c"


@dataclass
class HubServer:
    """What it serves, how it misbehaves, and what it was asked."""

    url: str = ""
    repo: str = "someone/tiny-gguf"
    files: dict[str, bytes] = field(default_factory=dict)
    commit: str = COMMIT
    etag: str | None = '"one"'
    announced_sha256: str | None = None
    """Instead of the true one."""
    without_lfs: bool = False
    statuses: list[int] = field(default_factory=list)
    """Answered to the next requests, one each, before anything else."""
    cuts: list[int] = field(default_factory=list)
    """The next bodies end after so many bytes."""
    versions: list[tuple[str, bytes]] = field(default_factory=list)
    """Tag and content of the next bodies, whatever the file's name; the last one stays."""
    ranges: bool = True
    honours_if_range: bool = True
    needs_token: str | None = None
    content_at: str = "/cdn"
    """Where `resolve` sends the client; may be another server."""
    gate: threading.Event | None = None
    """Bodies wait for it."""
    body_asked: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def asked(self, pattern: str) -> list[dict[str, str]]:
        """The headers of each request whose path fits."""
        return [headers for path, headers in self.requests if re.search(pattern, path)]


@contextmanager
def hub_server(**settings) -> Iterator[HubServer]:
    hub = HubServer(**settings)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *args, **more):
        pass

    def do_GET(self):
        hub = self.hub
        path = self.path.split("?")[0]
        hub.requests.append((self.path, {key.lower(): value for key, value in self.headers.items()}))
        if hub.statuses:
            self.reply(hub.statuses.pop(0), b"{}")
        elif (
            hub.needs_token and "/cdn/" not in path and self.headers.get("Authorization") != f"Bearer {hub.needs_token}"
        ):
            self.reply(401, b'{"error":"Invalid username or password."}')
        elif match := re.fullmatch(rf"/api/models/{hub.repo}/revision/(.+)", path):
            self.info(match[1])
        elif match := re.fullmatch(rf"/{hub.repo}/resolve/{hub.commit}/(.+)", path):
            self.reply(302, b"", Location=f"{hub.content_at}/{match[1]}")
        elif path.startswith("/cdn/") and path.removeprefix("/cdn/") in hub.files:
            self.body(hub.files[path.removeprefix("/cdn/")])
        else:
            self.reply(404, b'{"error":"Repository not found"}')

    def info(self, revision):
        if revision not in ("main", self.hub.commit):
            self.reply(404, b'{"error":"Invalid rev id"}')
            return
        siblings = []
        for name, content in self.hub.files.items():
            sibling = {"rfilename": name, "blobId": "x", "size": len(content)}
            if not self.hub.without_lfs:
                sha256 = self.hub.announced_sha256 or hashlib.sha256(content).hexdigest()
                sibling["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
            siblings.append(sibling)
        body = {"id": self.hub.repo, "sha": self.hub.commit, "private": False, "siblings": siblings}
        self.reply(200, json.dumps(body).encode())

    def body(self, content):
        hub = self.hub
        hub.body_asked.set()
        if hub.gate:
            hub.gate.wait(30)
        if hub.versions:
            hub.etag, content = hub.versions[0]
            del hub.versions[: len(hub.versions) > 1]
        headers = {"ETag": hub.etag} if hub.etag else {}
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        same = not hub.honours_if_range or self.headers.get("If-Range") in (None, hub.etag)
        start, status = 0, 200
        if asked and hub.ranges and same:
            start, status = int(asked[1]), 206
            if start >= len(content):
                self.reply(416, b"", **{"Content-Range": f"bytes */{len(content)}"})
                return
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.reply(status, content[start:], cut=hub.cuts.pop(0) if hub.cuts else None, **headers)

    def reply(self, status, body, *, cut=None, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None and cut < len(body):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
