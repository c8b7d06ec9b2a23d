"""The main job with real parts: a client over stdio, the server, a worker, llama.cpp with a tiny model, a report."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from mcp import Client, StdioServerParameters

from mcp_server.config import Config
from tests.mcp_server.conftest import Session, rig_processes, session

SCHEMA = json.loads((Path(__file__).parents[2] / "evals/report.schema.json").read_text())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.timeout(300)
async def test_from_a_client_to_a_report_with_nothing_left_running(
    config: Config, rig_home: Path, tiny_model: Path, mode: Any
) -> None:
    server = StdioServerParameters(command=sys.executable, args=["-m", "mcp_server"], env=dict(os.environ))
    async with Client(server, mode=mode) as client:
        s = Session(client)
        attached = await s.do("attach_rig")
        assert attached["result"]["cpu_count"] == os.cpu_count()
        assert (await s.call("list_engines", rig="local"))["engines"][0]["reasons"] == []
        built = await s.do("build_engine", rig="local")
        assert built["result"]["engine_version"] == "b11549"

        served = await s.serve(tiny_model)
        assert served["result"]["base_url"].startswith("http://127.0.0.1:")
        rig = (await s.call("list_rigs"))["rigs"][0]
        assert (rig["served"]["engine"], rig["served"]["checkpoint"]) == ("llamacpp", "tiny")

        speed = await s.do("run_speed", rig="local", prompts=["code", "story"], max_tokens=12, repeats=2)
        assert (speed["done"], speed["total"]) == (4, 4)
        sweep = await s.do("run_sweep", rig="local", concurrency=[1, 4], shapes=["48/12"], repeats=2, seed=7)
        assert [line["report_id"] for line in (await s.call("list_reports"))["reports"]] == [
            sweep["job_id"],
            speed["job_id"],
        ]

        summary = await s.call("get_report", report_id=sweep["job_id"], concurrency=4)
        assert len(json.dumps(summary)) < 8192
        assert (summary["status"], summary["requests_ok"], summary["requests_failed"]) == ("ok", 10, 0)
        assert (summary["cells_by_status"], summary["cells_matched"]) == ({"ok": 4}, 2)
        report = json.loads(Path(summary["path"]).read_text())
        check_report(report, tiny_model)
        assert {cell["input_tokens"]["got"] for cell in report["cells"]} == {48.0}
        assert {cell["output_tokens"]["got"] for cell in report["cells"]} == {12.0}
        resource = await client.read_resource(summary["resource"])
        assert json.loads(resource.contents[0].text) == report  # pyright: ignore[reportAttributeAccessIssue]
        requests = (Path(summary["path"]).parent / report["requests_path"]).read_text().splitlines()
        assert len(requests) == 10

        speed_report = await s.call("get_report", report_id=speed["job_id"])
        assert set(speed_report["speed"]["decode_tok_s"]) == {"code", "story"}

        score = await s.do("run_eval", rig="local", dataset="gsm8k", limit=3, concurrency=2, max_tokens=8)
        report = await s.call("get_report", report_id=score["job_id"], all_cells=True)
        assert (report["status"], report["requests_ok"], len(report["cells"])) == ("ok", 3, 1)
        assert (report["eval"]["n"], report["eval"]["not_answered"], report["eval"]["cut_off"]) == (3, 0, 3)
        folder = Path(report["path"]).parent
        whole = json.loads((folder / "report.json").read_text())
        jsonschema.validate(whole, SCHEMA)
        assert whole["provenance"]["questions"] == {"source": "sample"}
        results = (folder / report["eval"]["items_path"]).read_text().splitlines()
        assert [json.loads(line)["id"] for line in results] == ["gsm8k-1", "gsm8k-2", "gsm8k-3"]
        calls = await s.do("run_eval", rig="local", dataset="bfcl_simple")
        report = await s.call("get_report", report_id=calls["job_id"])
        assert (report["status"], report["eval"], report["requests_ok"]) == ("unsupported", None, 0)
        assert "knows no tools" in report["reason"]

        page = await s.call("render_report", report_id=sweep["job_id"])
        assert "48 tokens in, 12 out" in page["preview"]
        table = await s.call("render_report", report_id=sweep["job_id"], format="csv")
        assert len(list(csv.DictReader(io.StringIO(Path(table["path"]).read_text())))) == 4

        log = await s.call("read_job_log", job_id=sweep["job_id"])
        assert "cell 4/4" in log["log"]
        assert any("measuring 4 cells" in event for event in log["events"])

        await s.do("stop_engine", rig="local")
        assert rig_processes(rig_home) == {}
        await s.do("detach_rig", rig="local")
        assert (await s.call("list_rigs"))["rigs"] == []


def check_report(report: dict[str, Any], model: Path) -> None:
    jsonschema.validate(report, SCHEMA)
    arm = report["arm"]
    assert (arm["rig"], arm["accelerator"], arm["engine"]) == ("local", "cpu", "llamacpp")
    assert arm["checkpoint"]["path"] == str(model)
    assert str(model) in arm["argv"]
    assert report["seed"] == 7
    assert report["cost_usd"] is None
    assert report["provenance"]["rig_facts"]["boot_id"]
    for cell in report["cells"]:
        assert cell["ttft_ms"]["n"] == cell["concurrency"]
        assert 0 < cell["ttft_ms"]["mean"] <= cell["e2e_ms"]["mean"]
        assert cell["cached_tokens"] == 0


@pytest.mark.timeout(300)
async def test_a_drafter_is_served_and_its_kept_share_reported(config: Config, tiny_model: Path) -> None:
    async with session(config) as s:
        await s.do("attach_rig")
        for drafter, source in (("ngram", "ngram-simple"), (str(tiny_model), "draft-simple")):
            await s.serve(tiny_model, drafter=drafter, draft_tokens=3)
            job = await s.do("run_speed", rig="local", prompts=["code"], max_tokens=64, repeats=1)
            report = await s.call("get_report", report_id=job["job_id"])
            assert report["arm"]["draft_tokens"] == 3
            arm = json.loads(Path(report["path"]).read_text())["arm"]
            assert source in arm["argv"]
            if source == "draft-simple":
                # The model drafts for itself: whatever it proposes is what it says.
                assert report["speed"]["acceptance"]["share"] > 0.9
                assert arm["drafter"]["model"]["sha256"] == arm["checkpoint"]["sha256"]
            await s.do("stop_engine", rig="local")


@pytest.mark.timeout(300)
async def test_what_cannot_be_served_is_said_and_nothing_of_it_stays(
    config: Config, rig_home: Path, tiny_model: Path, tmp_path: Path
) -> None:
    import socket

    truncated = tmp_path / "truncated.gguf"
    truncated.write_bytes(tiny_model.read_bytes()[:-5000])
    text = tmp_path / "$(touch pwned) `x`; 'y.gguf"
    text.write_text("not a model")
    async with session(config) as s:
        await s.do("attach_rig")

        async def failure(**arguments: Any) -> str:
            wanted = {"rig": "local", "context_tokens": 256, "threads": 1, **arguments}
            job = await s.finish(await s.call("serve_engine", **wanted))
            assert job["status"] == "failed"
            assert (await s.call("list_rigs"))["rigs"][0]["served"] is None
            return job["error"]

        assert "truncated" in await failure(checkpoint=str(truncated))
        assert "GGUF" in await failure(checkpoint=str(text))
        assert "There is no file /nowhere/x.gguf" in await failure(checkpoint="/nowhere/x.gguf")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            assert f"Port {port} of 'local' is in use" in await failure(checkpoint=str(tiny_model), port=port)
        assert "drafts for gemma-4" in await failure(
            checkpoint=str(tiny_model), drafter="gemma-4-e2b-it-assistant-q4_0"
        )
        # A model that llama.cpp itself refuses, after our own look at the file.
        strange = tmp_path / "strange.gguf"
        strange.write_bytes(tiny_model.read_bytes().replace(b"llama", b"lxama"))
        assert "ended at its start with exit code 1" in await failure(checkpoint=str(strange))
    assert not list(tmp_path.rglob("pwned"))
    assert not Path("/pwned").exists()
    assert rig_processes(rig_home) == {}


@pytest.mark.timeout(300)
async def test_one_machine_is_one_rig_and_serves_one_engine(config: Config, tiny_model: Path) -> None:
    async with session(config) as s:
        await s.do("attach_rig")
        again = await s.do("attach_rig")
        assert again["status"] == "done"
        other = await s.finish_or_error("attach_rig", name="other")
        assert "attached already, as 'local'" in other
        assert "Choose another name" in await s.finish_or_error("attach_rig", rig_home="/tmp/elsewhere")
        await s.serve(tiny_model)
        second = await s.finish(await s.call("serve_engine", rig="local", checkpoint=str(tiny_model)))
        assert "already serves tiny with llamacpp" in second["error"]
        assert "stop_engine(rig='local')" in second["error"]
        await s.do("stop_engine", rig="local")
        assert (await s.do("stop_engine", rig="local"))["result"]["stopped"] is None


@pytest.mark.timeout(300)
async def test_cells_that_the_context_cannot_hold_are_infeasible_and_the_others_run(
    config: Config, tiny_model: Path
) -> None:
    async with session(config) as s:
        await s.do("attach_rig")
        await s.serve(tiny_model, context_tokens=128)
        job = await s.do("run_sweep", rig="local", concurrency=[1], shapes=["32/8", "128/64"], repeats=1)
        report = await s.call("get_report", report_id=job["job_id"], all_cells=True)
        assert [cell["status"] for cell in report["cells"]] == ["ok", "infeasible"]
        assert "128 + 64 = 192 tokens do not fit a context of 128" in report["cells"][1]["reason"]
        await s.do("detach_rig", rig="local", purge=False)
