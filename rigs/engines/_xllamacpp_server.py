# pyright: basic
# It runs in the engine's own virtual environment, where only xllamacpp is; nothing of ours is importable there.
"""llama.cpp's own HTTP server, out of the xllamacpp wheel, in a process of its own.

The flags are those of `llama-server`, so that a launch line reads the same for both.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import sys
import threading

import xllamacpp  # pyright: ignore[reportMissingImports] - it is in the engine's own environment only

SPECULATION = {
    "draft-simple": "COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE",
    "draft-mtp": "COMMON_SPECULATIVE_TYPE_DRAFT_MTP",
    "ngram-simple": "COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ctx-size", type=int, required=True)
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--chat-template-file")
    parser.add_argument("--spec-type", choices=sorted(SPECULATION))
    parser.add_argument("--model-draft")
    parser.add_argument("--spec-draft-n-max", type=int)
    parser.add_argument("--spec-ngram-simple-size-n", type=int)
    parser.add_argument("--spec-ngram-simple-size-m", type=int)
    return parser.parse_args()


def parameters(options: argparse.Namespace) -> object:
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias}
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx = options.ctx_size
    params.n_parallel = options.parallel
    # One cache shared by all slots: split caches decode at a speed that varies from start to start.
    params.kv_unified = True
    params.endpoint_metrics = True
    params.ui = False
    params.n_gpu_layers = 0
    # A stream blocks the end of the server until its next ping.
    params.sse_ping_interval = 1
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    if options.chat_template_file:
        with open(options.chat_template_file, encoding="utf-8") as file:
            params.chat_template = file.read()
        params.use_jinja = True
    if options.spec_type:
        kind = getattr(xllamacpp.common_speculative_type, SPECULATION[options.spec_type])
        params.speculative.types = [kind]
    if options.model_draft:
        params.speculative.draft.mparams.path = options.model_draft
    if options.spec_draft_n_max:
        params.speculative.draft.n_max = options.spec_draft_n_max
    if options.spec_ngram_simple_size_n:
        params.speculative.ngram_simple.size_n = options.spec_ngram_simple_size_n
    if options.spec_ngram_simple_size_m:
        params.speculative.ngram_simple.size_m = options.spec_ngram_simple_size_m
    return params


def drafts(options: argparse.Namespace) -> bool:
    """Whether every slot of the running server has its drafter."""
    connection = http.client.HTTPConnection(options.host, options.port, timeout=60)
    connection.request("GET", "/slots")
    slots = json.load(connection.getresponse())
    connection.close()
    return all(slot["speculative"] for slot in slots)


def main() -> int:
    options = arguments()
    # Before the model is loaded: a taken port is told at once, not after minutes.
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((options.host, options.port))
        except OSError as error:
            print(f"couldn't bind HTTP server socket, port {options.port}: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the log is its output
            return 1
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        server = xllamacpp.Server(parameters(options))
    except Exception as error:  # noqa: BLE001 - whatever the C++ side throws is the end of this process
        print(f"FATAL {error}", file=sys.stderr, flush=True)  # noqa: T201
        return 1
    if options.spec_type and not drafts(options):
        # llama.cpp goes on without a drafter that it cannot use, and figures would pass for those of another arm.
        print("FATAL the server runs without the drafter", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(1)
    print(f"READY {server.listening_address}", flush=True)  # noqa: T201
    stop.wait()
    # Its destructor waits for open streams; the operating system frees all the same.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
