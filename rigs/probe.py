"""Looking at a rig: one script run there, and pure functions that read what it printed.

Each function takes the text of one section and gives None, or nothing, where the section is empty or not understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.resources import files
from typing import Final

from rigs.accelerators import recognise
from rigs.connection import Connection
from rigs.errors import CommandError
from rigs.facts import AcceleratorFacts, PythonFacts, RigFacts

PROBE_SCRIPT: Final = files("rigs").joinpath("probe.sh").read_text(encoding="utf-8")
PROBE_TIMEOUT_S: Final = 120.0

MIN_PYTHON: Final = (3, 11)

TELLING_CPU_FLAGS: Final = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "bmi2",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "asimdhp",
    "i8mm",
    "bf16",
    "sve",
    "sve2",
)
"""Linux's names; of the hundred or so that a CPU has, these decide which builds of an engine run, and how fast."""

_MACOS_CPU_FLAGS: Final = {
    "SSE4.2": "sse4_2",
    "AVX1.0": "avx",
    "AVX2": "avx2",
    "FMA": "fma",
    "F16C": "f16c",
    "BMI2": "bmi2",
    "AVX512F": "avx512f",
    "AVX512BW": "avx512bw",
    "AVX512VL": "avx512vl",
    "hw.optional.neon": "asimd",
    "hw.optional.AdvSIMD": "asimd",
    "hw.optional.arm.AdvSIMD": "asimd",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_FP16": "asimdhp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_BF16": "bf16",
}

_TPU_OF_PCI_DEVICE: Final = {
    "0x0027": "v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
}
"""Google's PCI device numbers, as JAX's own look at the hardware knows them. Google makes network cards too."""

_TPU_OF_TYPE: Final = {"v5litepod": "v5e", "v5lite": "v5e", "v5e": "v5e", "v6e": "v6e", "v5p": "v5p", "v4": "v4"}


async def probe(connection: Connection, rig_home: str, python: str | None = None) -> RigFacts:
    """Look at the machine; changes nothing there. `python` comes before others, if it is new enough.

    Raises:
        CommandError: the machine has no POSIX shell, or the script did not come to its end.
    """
    argv = ["sh", "-s", "--", rig_home, python or ""]
    result = await connection.run(argv, stdin=PROBE_SCRIPT.encode(), timeout_s=PROBE_TIMEOUT_S)
    result.check("Probing the rig")
    if "end" not in sections(result.text):
        stderr = result.stderr.decode("utf-8", "replace") or "The output ends early."
        raise CommandError(argv, result.exit_code, stderr, "Probing the rig")
    return parse_probe(result.text, datetime.now(UTC).isoformat(timespec="seconds"))


def parse_probe(output: str, probed_at: str) -> RigFacts:
    """The script's output as facts. A section may be missing, empty, or hold a tool's complaint for an answer."""
    found = sections(output)

    def text(name: str) -> str:
        return found.get(name, "")

    memory_mib, memory_available_mib = parse_memory(text("memory"))
    return RigFacts(
        hostname=_one_line(text("hostname")),
        os=_one_line(text("os")),
        os_release=parse_os_release(text("os_release")),
        kernel=_one_line(text("kernel")),
        machine=_one_line(text("machine")),
        libc=parse_libc(text("libc")),
        cpu_model=parse_cpu_model(text("cpu")),
        cpu_count=_integer(text("cpu_count")),
        cpu_flags=parse_cpu_flags(text("cpu")),
        memory_mib=memory_mib,
        memory_available_mib=memory_available_mib,
        disk_free_mib=parse_disk_free_mib(text("disk")),
        python=choose_python(text("python")),
        docker=parse_docker(text("docker")),
        nvidia_driver=parse_nvidia_driver(text("gpus"), text("gpu_header")),
        cuda_driver=parse_cuda_driver(text("gpu_header")),
        cuda_toolkit=parse_cuda_toolkit(text("nvcc")),
        accelerators=parse_gpus(text("gpus")) + parse_tpus(text("tpu")),
        boot_id=parse_boot_id(text("boot_id")),
        probed_at=probed_at,
    )


def sections(output: str) -> dict[str, str]:
    """Name -> text. What stands before the first mark (a login's greeting) belongs to none."""
    parts = re.split(r"^@@([a-z_]+)[ \r]*$", output, flags=re.MULTILINE)
    return {name: body.replace("\r", "").strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def parse_os_release(text: str) -> str | None:
    """Linux's /etc/os-release, or macOS's sw_vers."""
    pairs = _pairs(text, "=")
    if "PRETTY_NAME" in pairs:
        return pairs["PRETTY_NAME"].strip("\"'") or None
    macos = _pairs(text, ":")
    if "ProductName" in macos:
        return f"{macos['ProductName']} {macos.get('ProductVersion', '')}".strip()
    return None


def parse_libc(text: str) -> str | None:
    if musl := re.search(r"^musl libc.*\n(?:.*\n)*?Version (\S+)", text, re.MULTILINE):
        return f"musl {musl[1]}"
    if glibc := re.search(r"^glibc ([\d.]+)$", text, re.MULTILINE):
        return f"glibc {glibc[1]}"
    if ldd := re.search(r"^ldd \(.*\) ([\d.]+)$", text, re.MULTILINE):
        return f"glibc {ldd[1]}"
    return None


def parse_cpu_model(text: str) -> str | None:
    pairs = _pairs(text, ":")
    for key in ("model name", "machdep.cpu.brand_string", "Model", "Hardware"):
        if pairs.get(key):
            return pairs[key]
    return None


def parse_cpu_flags(text: str) -> tuple[str, ...]:
    pairs = _pairs(text, ":")
    present = {*pairs.get("flags", "").split(), *pairs.get("Features", "").split()}
    macos = f"{pairs.get('machdep.cpu.features', '')} {pairs.get('machdep.cpu.leaf7_features', '')}".split()
    macos += [key for key, value in pairs.items() if value == "1"]
    present |= {_MACOS_CPU_FLAGS[flag] for flag in macos if flag in _MACOS_CPU_FLAGS}
    return tuple(flag for flag in TELLING_CPU_FLAGS if flag in present)


def parse_memory(text: str) -> tuple[int | None, int | None]:
    """Total and available MiB. On macOS the latter is an estimate: pages that are free, inactive or read ahead."""
    pairs = _pairs(text, ":")
    if "MemTotal" in pairs:
        total, available = _integer(pairs["MemTotal"]), _integer(pairs.get("MemAvailable", ""))
        return _scaled(total, 1024), _scaled(available, 1024)
    page_bytes = re.search(r"page size of (\d+) bytes", text)
    free = [_integer(pairs.get(key, "")) for key in ("Pages free", "Pages inactive", "Pages speculative")]
    pages = sum(count for count in free if count is not None)
    available_bytes = pages * int(page_bytes[1]) if page_bytes and pages else None
    return _scaled(_integer(pairs.get("hw.memsize", "")), 1 << 20), _scaled(available_bytes, 1 << 20)


def parse_disk_free_mib(text: str) -> int | None:
    """From `df -Pk`. A device and a mount point may hold spaces, so the figures are what is looked for."""
    row = re.search(r"\s\d+\s+-?\d+\s+(-?\d+)\s+(?:\d+%|-)\s+/", text)
    return max(0, int(row[1])) // 1024 if row else None


def choose_python(text: str) -> PythonFacts | None:
    """The preferred one if it is new enough, else the newest that is; of equals, the first on the path."""
    candidates: list[tuple[bool, tuple[int, ...], PythonFacts]] = []
    for line in text.splitlines():
        match = re.fullmatch(r"python\t(preferred|found)\t(/[^\t]*)\t(\d+(?:\.\d+)+)", line)
        if match is None:
            continue
        numbers = tuple(int(part) for part in match[3].split("."))
        if numbers >= MIN_PYTHON:
            candidates.append((match[1] == "preferred", numbers, PythonFacts(path=match[2], version=match[3])))
    return max(candidates, key=lambda candidate: candidate[:2])[2] if candidates else None


def parse_docker(text: str) -> str | None:
    """Docker's version. Podman, where it answers to that name, is named: it is not the same thing."""
    if docker := re.search(r"^Docker version ([^\s,]+)", text, re.MULTILINE):
        return docker[1]
    podman = re.search(r"^podman version (\S+)", text, re.MULTILINE)
    return f"podman {podman[1]}" if podman else None


def parse_nvidia_driver(gpus: str, header: str) -> str | None:
    for row in _gpu_rows(gpus):
        if row["driver_version"]:
            return row["driver_version"]
    driver = re.search(r"(?:Driver|KMD) Version: *(\d+(?:\.\d+)+)", header)
    return driver[1] if driver else None


def parse_cuda_driver(header: str) -> str | None:
    """The header says `N/A` or `Not Found` where the driver's CUDA library is not installed."""
    cuda = re.search(r"CUDA(?: UMD)? Version: *(\d+\.\d+)", header)
    return cuda[1] if cuda else None


def parse_cuda_toolkit(text: str) -> str | None:
    release = re.search(r"release (\d+\.\d+)(?:, V(\d+(?:\.\d+)+))?", text)
    return (release[2] or release[1]) if release else None


def parse_boot_id(text: str) -> str | None:
    uuid = re.search(r"^[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$", text, re.MULTILINE)
    return uuid[0] if uuid else None


def parse_gpus(text: str) -> tuple[AcceleratorFacts, ...]:
    """The rows of nvidia-smi's query; its complaints are no rows."""
    return tuple(_gpu(row) for row in _gpu_rows(text))


def parse_tpus(text: str) -> tuple[AcceleratorFacts, ...]:
    """TPU chips by their PCI numbers; failing that, a guess from what the image says about itself, named as a guess.

    Memory is not read: no file tells it, and asking the runtime would take the chip.
    """
    lines = [line.split("\t", 1) for line in text.splitlines() if "\t" in line]
    seen = [_TPU_OF_PCI_DEVICE[value] for kind, value in lines if kind == "pci" and value in _TPU_OF_PCI_DEVICE]
    if seen:
        return tuple(_tpu(generation, f"TPU {generation}") for generation in seen)
    nodes = [value for kind, value in lines if kind == "node"]
    for kind, value in lines:
        hint = re.search(r"\b(v\d\w*)-\d+", value) if kind == "hint" else None
        generation = _TPU_OF_TYPE.get(hint[1]) if hint else None
        if hint and generation:
            name = f"TPU {generation} (a guess from {hint[0]})"
            return tuple(_tpu(generation, name) for _ in nodes)
    return ()


def _tpu(generation: str, name: str) -> AcceleratorFacts:
    entry = recognise(f"TPU {generation}", None)
    return AcceleratorFacts(name=name, catalogue_name=entry.name if entry else None, architecture=f"tpu_{generation}")


_GPU_COLUMNS: Final = ("name", "memory_mib", "memory_used_mib", "compute_cap", "driver_version", "uuid")


def _gpu_rows(text: str) -> list[Mapping[str, str | None]]:
    rows: list[Mapping[str, str | None]] = []
    for line in text.splitlines():
        values = [_answer(value) for value in line.split(",")]
        if len(values) == len(_GPU_COLUMNS) - 1:
            values.insert(3, None)  # the driver is too old to know compute_cap
        if len(values) != len(_GPU_COLUMNS):
            continue
        # A sentence with as many commas is still no row: these two have forms of their own.
        driver, uuid = values[4] or "", values[5] or ""
        if values[0] and (uuid.startswith("GPU-") or re.fullmatch(r"\d+(?:\.\d+)+", driver)):
            rows.append(dict(zip(_GPU_COLUMNS, values, strict=True)))
    return rows


def _gpu(row: Mapping[str, str | None]) -> AcceleratorFacts:
    name = row["name"] or ""
    memory_mib = _integer(row["memory_mib"] or "")
    entry = recognise(name, memory_mib)
    capability = re.fullmatch(r"(\d+)\.(\d)", row["compute_cap"] or "")
    return AcceleratorFacts(
        name=name,
        catalogue_name=entry.name if entry else None,
        memory_mib=memory_mib,
        memory_used_mib=_integer(row["memory_used_mib"] or ""),
        architecture=f"sm_{capability[1]}{capability[2]}" if capability else None,
        uuid=row["uuid"],
    )


def _answer(value: str) -> str | None:
    """nvidia-smi puts what it cannot tell into brackets: `[N/A]`, `[Not Supported]`, `[Unknown Error]`."""
    value = value.strip()
    return None if not value or value.startswith("[") or value in {"N/A", "Not Supported"} else value


def _one_line(text: str) -> str | None:
    """The text if it is one line; a tool's usage message is not an answer."""
    return text if text and "\n" not in text else None


def _integer(text: str) -> int | None:
    match = re.match(r"\s*(\d+)\b", text)
    return int(match[1]) if match else None


def _scaled(value: int | None, divisor: int) -> int | None:
    return None if value is None else value // divisor


def _pairs(text: str, separator: str) -> dict[str, str]:
    """`key SEPARATOR value` lines; the first of equal keys holds."""
    split: Iterable[list[str]] = (line.split(separator, 1) for line in text.splitlines() if separator in line)
    pairs: dict[str, str] = {}
    for key, value in split:
        pairs.setdefault(key.strip(), value.strip())
    return pairs
