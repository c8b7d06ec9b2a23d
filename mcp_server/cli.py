"""The command `rigbench`: without arguments MCP over stdio; on a terminal it says how to add it to a client."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence

from mcp_server.version import VERSION
from rigs.errors import RigsError

HINT = """\
rigbench {version} is an MCP server: an MCP client starts it and talks to it over stdin and stdout.

Add it to a client:
  Claude Code   claude mcp add rigbench -- {command}
  others        {{"mcpServers": {{"rigbench": {{"command": "{command}"}}}}}}

Then ask, for example: "Attach this machine, serve SmolLM2 with llama.cpp and measure its speed."
Without a client: {command} demo, or {command} measure --help.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code. 2: wrong usage, 1: it failed, in words on stderr."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except RigsError as error:
        sys.stderr.write(f"rigbench: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("rigbench: interrupted\n")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rigbench", description=__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"rigbench {VERSION}")
    parser.set_defaults(run=_serve)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve MCP over stdio, also on a terminal")
    serve.set_defaults(run=_serve_always)

    worker = commands.add_parser("worker", help="the background process that runs jobs")
    actions = worker.add_subparsers(title="actions", metavar="ACTION", required=True)
    status = actions.add_parser("status", help="say whether it runs, and what it does")
    status.add_argument("--json", action="store_true", help="one JSON object on stdout")
    status.set_defaults(run=_worker_status)
    stop = actions.add_parser("stop", help="end it; its jobs go on when it is started again")
    stop.set_defaults(run=_worker_stop)

    demo = commands.add_parser("demo", help="attach this machine, serve a toy model, measure it, let it go")
    demo.add_argument("--quick", action="store_true", help="even less work: under a minute once installed")
    demo.add_argument("--json", action="store_true", help="one JSON object on stdout instead of tables")
    demo.set_defaults(run=_demo)

    _add_shell(commands)
    render = commands.add_parser("render", help="draw a report.json as a page and as charts")
    render.add_argument("report", metavar="REPORT.json")
    render.add_argument("--against", metavar="OTHER.json", help="a report of the same workload, drawn beside it")
    render.add_argument("--html", metavar="FILE", help="write the page here: one file, to be shared")
    render.add_argument("--png", metavar="FOLDER", help="write the charts here")
    render.set_defaults(run=_render)

    _add_measure(commands.add_parser("measure", help="measure any OpenAI-compatible endpoint, without a rig"))
    return parser


def _add_shell(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage] - argparse names it nowhere else
    jobs = commands.add_parser("jobs", help="what ran, runs and waits, newest first")
    jobs.add_argument("--rig", help="only of this rig")
    jobs.add_argument("--unfinished", action="store_true", help="only queued and running ones")
    reports = commands.add_parser("reports", help="reports with their main figure, newest first")
    for of in (jobs, reports):
        of.add_argument("--limit", type=int, default=20, metavar="N")
    report = commands.add_parser("report", help="print one report as markdown, or as JSON")
    report.add_argument("report_id", metavar="ID")
    clean = commands.add_parser("clean", help="show what takes space on this machine, and free it where asked")
    clean.add_argument("--models", action="store_true", help="remove fetched weights")
    clean.add_argument("--engines", action="store_true", help="remove installed engines")
    for name, of in (("jobs", jobs), ("reports", reports), ("report", report), ("clean", clean)):
        of.add_argument("--json", action="store_true", help="JSON on stdout, for programs")
        of.set_defaults(run=_shell, command=name)


def _add_measure(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    speed = kinds.add_parser("speed", help="one request at a time, chat prompts x repeats, greedy")
    speed.add_argument("--prompts", help="comma-separated, of code,advice,story,explanation,facts,summary")
    speed.add_argument("--max-tokens", type=int, default=256, metavar="N")
    speed.add_argument("--repeats", type=int, default=3, metavar="N")
    sweep = kinds.add_parser("sweep", help="bursts of requests at once, over concurrencies and shapes")
    sweep.add_argument("--concurrency", default="1,2,4,8,16,32,64", metavar="N,N,...")
    sweep.add_argument("--shapes", default="512/128,128/512", metavar="IN/OUT,...", help="prompt and reply, in tokens")
    sweep.add_argument("--repeats", type=int, default=5, metavar="N")
    scored = kinds.add_parser("eval", help="questions asked once each, greedy, and scored")
    scored.add_argument("--dataset", required=True, choices=("gsm8k", "bfcl_simple"))
    scored.add_argument("--source", default="sample", help="sample (default), hub, a path, or an http(s) address")
    scored.add_argument("--sha256", help="of the source; an address needs it")
    scored.add_argument("--answers", help="bfcl_simple: path or address of the file of answers")
    scored.add_argument("--answers-sha256", metavar="SHA256")
    scored.add_argument("--limit", type=int, metavar="N", help="ask the first N; default: all")
    scored.add_argument("--concurrency", type=int, default=1, metavar="N")
    scored.add_argument("--max-tokens", type=int, default=1024, metavar="N", help="longest reply")
    for kind, of in (("speed", speed), ("sweep", sweep), ("eval", scored)):
        of.add_argument("--base-url", required=True, help="e.g. http://127.0.0.1:8080; /v1 may be there or not")
        of.add_argument("--model", required=True, help="the model's name in requests")
        of.add_argument("--out", required=True, help="folder for report.json and requests.jsonl; run again to go on")
        of.add_argument("--engine", help="send this engine's request fields (exact lengths, cache off), e.g. llamacpp")
        of.add_argument("--seed", type=int, help="makes the prompts; default: a new one")
        of.add_argument("--context-tokens", type=int, help="what the endpoint can hold, so that no cell asks for more")
        of.add_argument("--parallel", type=int, help="requests the endpoint decodes at once")
        of.add_argument("--api-key-env", metavar="VAR", help="environment variable that holds the key")
        of.add_argument("--body", type=_json_object, default={}, metavar="JSON", help="added to every request")
        of.set_defaults(run=_measure, kind=kind)


def _json_object(text: str) -> dict[str, object]:
    value: object = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text} is no JSON object")
    return {str(key): item for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - any JSON


def _serve(options: argparse.Namespace) -> int:
    if sys.stdin.isatty():
        sys.stdout.write(HINT.format(version=VERSION, command="rigbench"))
        return 0
    return _serve_always(options)


def _serve_always(_: argparse.Namespace) -> int:
    from mcp_server import server

    server.main()
    return 0


def _worker_status(options: argparse.Namespace) -> int:
    from mcp_server import daemon
    from mcp_server.config import load
    from mcp_server.state import State

    config = load()
    pid = daemon.worker_pid(config) if config.worker_folder.exists() else None
    found = daemon.ready(config) if pid is not None else None
    jobs: list[str] = []
    if config.database.exists():
        state = State(config.database)
        jobs = [f"{job.job_id} ({job.status}) {job.detail}" for job in state.jobs(unfinished=True)]
        state.close()
    running = "not running" if pid is None else f"running (process {pid})" if found else f"starting (process {pid})"
    if options.json:
        status = {"pid": pid, "version": found.version if found else None, "jobs": jobs, "home": str(config.home)}
        sys.stdout.write(json.dumps(status) + "\n")
        return 0
    sys.stdout.write(f"worker: {running}{f', rigbench {found.version}' if found else ''}\nstate:  {config.home}\n")
    sys.stdout.write("".join(f"job:    {job}\n" for job in jobs) or "jobs:   none unfinished\n")
    return 0


def _worker_stop(_: argparse.Namespace) -> int:
    from mcp_server import daemon
    from mcp_server.config import load

    config = load()
    pid = daemon.stop_worker(config) if config.worker_folder.exists() else None
    if pid is None:
        sys.stdout.write("no worker runs\n")
        return 0
    ended = daemon.wait_until_ended(config, timeout_s=15)
    sys.stdout.write(f"worker {pid} {'ended' if ended else 'was asked to end and has not yet'}\n")
    return 0 if ended else 1


def _shell(options: argparse.Namespace) -> int:
    from mcp_server import shell

    run: Callable[[argparse.Namespace], int] = getattr(shell, options.command)
    return run(options)


def _demo(options: argparse.Namespace) -> int:
    from mcp_server import demo

    return demo.main(quick=options.quick, as_json=options.json)


def _render(options: argparse.Namespace) -> int:
    from evals.render import __main__ as drawing

    given = ((f"--{name}", getattr(options, name)) for name in ("against", "html", "png"))
    return drawing.main([options.report, *(word for name, value in given if value for word in (name, value))])


def _measure(options: argparse.Namespace) -> int:
    from mcp_server import measure_command

    return measure_command.run(options)


if __name__ == "__main__":
    sys.exit(main())
