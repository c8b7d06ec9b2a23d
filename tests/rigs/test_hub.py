import hashlib
from pathlib import Path

import pytest
from pydantic import SecretStr

from rigs.checkpoints import HubSource
from rigs.errors import CheckpointError, RigFullError, UsageError
from rigs.hub import MAX_FAILURES, Hub
from rigs.transfer import Progress
from tests.rigs.hub_server import COMMIT, hub_server

CONTENT = bytes(range(256)) * 4096  # 1 MiB
REPO = "someone/tiny-gguf"
SOURCE = HubSource(repo=REPO)


@pytest.fixture(autouse=True)
def nothing_of_the_users(monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HF_HOME", "HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def server():
    with hub_server(files={"tiny.gguf": CONTENT, "README.md": b"x"}) as running:
        yield running


class Delays(list):
    """Instead of waiting."""

    def __call__(self, seconds):
        self.append(seconds)


def download(server, tmp_path: Path, **settings) -> tuple[Path, Delays, list[str]]:
    delays, lines = Delays(), []
    part = tmp_path / "tiny.gguf.part"
    with Hub(server.url, sleep=delays, **settings) as hub:
        hub.download(hub.find(SOURCE), part, Progress("tiny", lines.append))
    return part, delays, lines


def test_a_revision_is_resolved_to_a_commit_a_file_and_its_hash(server):
    with Hub(server.url) as hub:
        file = hub.find(SOURCE)
    assert (file.commit, file.filename, file.size_bytes) == (COMMIT, "tiny.gguf", len(CONTENT))
    assert file.sha256 == hashlib.sha256(CONTENT).hexdigest()


def test_a_file_is_downloaded_over_a_redirect_at_the_resolved_commit(server, tmp_path):
    part, delays, lines = download(server, tmp_path)
    assert part.read_bytes() == CONTENT
    assert delays == []
    assert [path for path, _ in server.requests][1:] == [f"/{REPO}/resolve/{COMMIT}/tiny.gguf", "/cdn/tiny.gguf"]
    assert lines[-1].startswith(f"tiny: download {len(CONTENT)} of {len(CONTENT)} bytes, 100.0 %")
    assert list(tmp_path.glob("*.json")) == []


def test_a_download_that_is_cut_goes_on_where_it_was(server, tmp_path):
    server.cuts = [300_000, 300_000, 300_000]
    part, delays, _ = download(server, tmp_path)
    assert part.read_bytes() == CONTENT
    assert [headers.get("range") for headers in server.asked("^/cdn")] == [
        None,
        "bytes=300000-",
        "bytes=600000-",
        "bytes=900000-",
    ]
    assert server.asked("^/cdn")[1]["if-range"] == '"one"'
    assert delays == [1, 1, 1]


def test_more_cuts_than_failures_allowed_are_no_failure_while_bytes_come(server, tmp_path):
    server.cuts = [70_000] * (3 * MAX_FAILURES)
    part, delays, _ = download(server, tmp_path)
    assert part.read_bytes() == CONTENT
    assert set(delays) == {1}


def test_a_later_call_goes_on_where_an_earlier_one_gave_up(server, tmp_path):
    server.cuts = [500_000] + [0] * MAX_FAILURES
    with pytest.raises(CheckpointError, match=r"Gave up .* after 5 failures in a row: .*call again to go on"):
        download(server, tmp_path)
    assert (tmp_path / "tiny.gguf.part").read_bytes() == CONTENT[:500_000]
    server.cuts.clear()
    part, _, _ = download(server, tmp_path)
    assert part.read_bytes() == CONTENT
    assert server.asked("^/cdn")[-1]["range"] == "bytes=500000-"


def test_delays_grow_while_nothing_comes(server, tmp_path):
    server.cuts = [0] * MAX_FAILURES
    delays = Delays()
    with Hub(server.url, sleep=delays) as hub, pytest.raises(CheckpointError, match="Gave up"):
        hub.download(hub.find(SOURCE), tmp_path / "x.part", Progress("tiny", str))
    assert delays == [1, 2, 4, 8]


def test_a_server_without_ranges_that_cuts_at_the_same_place_is_given_up(server, tmp_path):
    server.ranges = False
    server.cuts = [400_000] * 20
    with pytest.raises(CheckpointError, match="Gave up"):
        download(server, tmp_path)
    assert len(server.asked("^/cdn")) == MAX_FAILURES


def test_a_server_that_answers_with_the_whole_file_starts_it_anew(server, tmp_path):
    server.ranges = False
    server.cuts = [400_000]
    part, _, _ = download(server, tmp_path)
    assert part.read_bytes() == CONTENT


@pytest.mark.parametrize("honours_if_range", [True, False])
def test_a_file_that_changes_between_two_attempts_is_not_stitched_together(server, tmp_path, honours_if_range):
    server.honours_if_range = honours_if_range
    server.versions = [('"old"', CONTENT), ('"new"', CONTENT[::-1])]
    server.cuts = [400_000]
    part, _, _ = download(server, tmp_path)
    assert part.read_bytes() == CONTENT[::-1]
    assert server.asked("^/cdn")[1]["if-range"] == '"old"'


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_strong_tag_a_cut_file_starts_anew(server, tmp_path, etag):
    server.etag = etag
    server.cuts = [400_000]
    part, _, _ = download(server, tmp_path)
    assert part.read_bytes() == CONTENT
    assert all("range" not in headers for headers in server.asked("^/cdn"))


def test_a_part_of_another_commit_is_not_continued(server, tmp_path):
    server.cuts = [500_000] + [0] * MAX_FAILURES
    with pytest.raises(CheckpointError):
        download(server, tmp_path)
    server.cuts.clear()
    server.commit = COMMIT[::-1]
    server.files["tiny.gguf"] = CONTENT[::-1]
    part, _, _ = download(server, tmp_path)
    assert part.read_bytes() == CONTENT[::-1]
    assert "range" not in server.asked("^/cdn")[-1]


def test_a_part_that_is_longer_than_the_file_starts_anew(server, tmp_path):
    (tmp_path / "tiny.gguf.part").write_bytes(CONTENT + b"more")
    part, _, _ = download(server, tmp_path)
    assert part.read_bytes() == CONTENT


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_hub_that_is_busy_is_asked_again(server, tmp_path, status):
    server.statuses = [status, status]
    part, delays, _ = download(server, tmp_path)
    assert part.read_bytes() == CONTENT
    assert delays == [1, 2]


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_repository_says_how_to_give_a_token(server, status):
    server.statuses = [status]
    with Hub(server.url) as hub, pytest.raises(CheckpointError, match=rf"\({status}\).*gated.*HF_TOKEN") as caught:
        hub.find(SOURCE)
    assert "No token was found there." in str(caught.value)


def test_a_missing_repository_or_revision_is_named(server):
    with Hub(server.url) as hub:
        with pytest.raises(CheckpointError, match="no someone/other at revision main"):
            hub.find(HubSource(repo="someone/other"))
        with pytest.raises(CheckpointError, match=f"no {REPO} at revision v9"):
            hub.find(HubSource(repo=REPO, revision="v9"))


def test_an_answer_that_is_no_hubs_is_told(server):
    server.statuses = [200]
    with Hub(server.url) as hub, pytest.raises(CheckpointError, match="gave no answer of a hub"):
        hub.find(SOURCE)


def test_two_gguf_files_ask_for_a_name_and_list_what_there_is(server):
    server.files["other.gguf"] = b"y"
    with Hub(server.url) as hub:
        with pytest.raises(CheckpointError, match=r"holds 2: tiny\.gguf, other\.gguf"):
            hub.find(SOURCE)
        assert hub.find(HubSource(repo=REPO, filename="other.gguf")).size_bytes == 1
        with pytest.raises(CheckpointError, match=r"holds no third\.gguf.*tiny\.gguf"):
            hub.find(HubSource(repo=REPO, filename="third.gguf"))


def test_a_hub_that_cannot_be_reached_is_named(tmp_path):
    with hub_server() as gone:
        pass
    delays = Delays()
    with Hub(gone.url, sleep=delays) as hub, pytest.raises(CheckpointError, match=f"Gave up on .* from {gone.url}"):
        hub.find(SOURCE)
    assert len(delays) == MAX_FAILURES - 1


def test_an_endpoint_that_is_no_address_is_the_callers_to_mend():
    with pytest.raises(UsageError, match="HF_ENDPOINT is 'hub'"):
        Hub("hub")


def test_room_is_asked_for_before_the_download(server, tmp_path):
    with pytest.raises(RigFullError, match=f"{len(CONTENT)} more bytes are needed in .*, 1000 are free"):
        download(server, tmp_path, free=lambda folder: 1000)
    assert server.asked("^/cdn") == []


def test_only_the_missing_bytes_need_room(server, tmp_path):
    server.cuts = [1_000_000] + [0] * MAX_FAILURES
    with pytest.raises(CheckpointError):
        download(server, tmp_path)
    server.cuts.clear()
    part, _, _ = download(server, tmp_path, free=lambda folder: len(CONTENT) - 1_000_000)
    assert part.read_bytes() == CONTENT


def test_the_token_goes_to_the_hub_and_not_to_where_it_sends_us(server, tmp_path):
    with hub_server(files=server.files) as elsewhere:
        server.needs_token = "secret-of-the-user"
        server.content_at = f"{elsewhere.url}/cdn"
        part, _, lines = download(server, tmp_path, token=SecretStr("secret-of-the-user"))
        assert part.read_bytes() == CONTENT
        assert ["authorization" in headers for headers in elsewhere.asked("^/cdn")] == [False]
    assert server.asked("^/api")[0]["authorization"] == "Bearer secret-of-the-user"
    assert "secret" not in "".join(lines)


def test_a_token_that_is_refused_is_not_printed(server):
    server.needs_token = "right"
    with Hub(server.url, SecretStr("wrong-secret")) as hub, pytest.raises(CheckpointError) as caught:
        hub.find(SOURCE)
    assert "was not accepted" in str(caught.value)
    assert "wrong-secret" not in str(caught.value)


@pytest.mark.parametrize("where", ["HF_TOKEN", "HF_HOME", "home"])
def test_the_token_is_found_where_the_hubs_own_tools_keep_it(server, tmp_path, where):
    environ = {"HF_ENDPOINT": server.url}
    if where == "HF_TOKEN":
        environ["HF_TOKEN"] = "from-the-user"
    else:
        home = tmp_path / ("hf" if where == "HF_HOME" else ".cache/huggingface")
        home.mkdir(parents=True)
        (home / "token").write_text("from-the-user\n")
        if where == "HF_HOME":
            environ["HF_HOME"] = str(home)
    with Hub.of_environment(environ) as hub:
        hub.find(SOURCE)
    assert server.asked("^/api")[0]["authorization"] == "Bearer from-the-user"


def test_a_server_that_sends_more_than_was_announced_is_refused(server, tmp_path):
    with Hub(server.url) as hub:
        file = hub.find(SOURCE)
        server.files["tiny.gguf"] = CONTENT + b"more"
        with pytest.raises(CheckpointError, match=f"says {len(CONTENT)} bytes"):
            hub.download(file, tmp_path / "x.part", Progress("tiny", str))
    assert not (tmp_path / "x.part").exists()


def test_progress_prints_at_most_once_a_second_and_at_the_end():
    lines: list[str] = []
    now = [100.0]
    progress = Progress("m", lines.append, lambda: now[0])
    progress.begin("download", 10_000_000, 1_000_000)
    for second in (0.5, 0.9, 1.0, 1.4, 2.5):
        now[0] = 100.0 + second
        progress.at(1_000_000 + int(second * 2_000_000))
    progress.at(10_000_000)
    assert lines == [
        "m: download 3000000 of 10000000 bytes, 30.0 %, 2.0 MB/s\n",
        "m: download 6000000 of 10000000 bytes, 60.0 %, 2.0 MB/s\n",
        "m: download 10000000 of 10000000 bytes, 100.0 %\n",
    ]
