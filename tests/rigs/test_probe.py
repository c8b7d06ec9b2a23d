"""The files `recorded/recorded_*.txt` are real output of the script; `recorded/written_*.txt` were written by hand
after the documented formats of the tools, for machines that we could not run it on."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rigs.connection import CommandResult
from rigs.errors import CommandError
from rigs.facts import AcceleratorFacts, PythonFacts, RigFacts
from rigs.local import LocalConnection
from rigs.probe import (
    PROBE_SCRIPT,
    choose_python,
    parse_cuda_driver,
    parse_disk_free_mib,
    parse_gpus,
    parse_memory,
    parse_probe,
    parse_tpus,
    probe,
    sections,
)

RECORDED = Path(__file__).parent / "recorded"
NOW = "2026-11-30T12:00:00+00:00"
AMX_SERVER_FLAGS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "bmi2", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16"),
)


def facts_of(name: str) -> RigFacts:
    return parse_probe((RECORDED / f"{name}.txt").read_text(), NOW)


def test_a_real_machine_without_accelerators_is_read_whole():
    facts = facts_of("recorded_debian12_cpu_vm")
    assert facts == RigFacts(
        hostname="rig",
        os="Linux",
        os_release="Debian GNU/Linux 12 (bookworm)",
        kernel="6.18.44-fc-v657",
        machine="x86_64",
        libc="glibc 2.36",
        cpu_model="Intel(R) Xeon(R) Processor",
        cpu_count=2,
        cpu_flags=AMX_SERVER_FLAGS,
        memory_mib=24152,
        memory_available_mib=facts.memory_available_mib,
        disk_free_mib=facts.disk_free_mib,
        python=PythonFacts(path="/home/user/.pyenv/versions/3.11.7/bin/python3.11", version="3.11.7"),
        docker="28.2.2",
        cuda_toolkit="13.0.88",
        boot_id="65b782e8-a2a1-4ef2-9f2e-a51a2a9b018e",
        probed_at=NOW,
    )
    assert facts.memory_available_mib is not None
    assert 0 < facts.memory_available_mib < 24152
    assert facts.disk_free_mib is not None
    assert 0 < facts.disk_free_mib < 264212084 // 1024


def test_an_l4_of_a_cloud_is_read_past_the_logins_greeting():
    facts = facts_of("written_l4_cloud")
    assert facts.accelerators == (
        AcceleratorFacts(
            name="NVIDIA L4",
            catalogue_name="L4",
            memory_mib=23034,
            memory_used_mib=0,
            architecture="sm_89",
            uuid="GPU-5f7a1c0e-93d2-4b1c-a1a4-0d3f9c2b7e61",
        ),
    )
    assert (facts.os, facts.nvidia_driver, facts.cuda_driver, facts.cuda_toolkit) == (
        "Linux",
        "595.112.07",
        "13.2",
        "13.1.80",
    )
    assert facts.disk_free_mib == 184809732 // 1024
    assert facts.docker is None


def test_a_t4_is_read_and_the_preferred_python_stands_before_a_newer_one():
    facts = facts_of("written_t4_cloud")
    (t4,) = facts.accelerators
    assert (t4.name, t4.catalogue_name, t4.architecture, t4.memory_used_mib) == ("Tesla T4", "T4", "sm_75", 104)
    assert facts.python == PythonFacts(path="/home/user/.rigbench/venv/bin/python", version="3.11.14")
    assert facts.docker == "27.5.1"


def test_of_two_gpus_each_has_its_row_and_what_the_driver_cannot_tell_is_none():
    facts = facts_of("written_two_gpus")
    assert [(gpu.catalogue_name, gpu.memory_mib, gpu.memory_used_mib) for gpu in facts.accelerators] == [
        ("RTX 3050 OEM", 8192, 312),
        (None, 24564, None),
    ]
    assert (facts.nvidia_driver, facts.cuda_driver) == ("615.78.08", "13.4")


def test_podman_under_dockers_name_is_named_and_spaces_in_mounts_do_no_harm():
    facts = facts_of("written_two_gpus")
    assert facts.docker == "podman 4.9.3"
    assert facts.disk_free_mib == 499417144 // 1024


def test_a_laptops_card_is_recognised_and_a_python_that_is_too_old_is_none():
    facts = facts_of("written_gtx1650ti_laptop")
    assert [gpu.catalogue_name for gpu in facts.accelerators] == ["GTX 1650 Ti"]
    assert facts.python is None


def test_a_driver_too_old_for_compute_cap_leaves_the_architecture_unknown():
    facts = facts_of("written_old_driver")
    (t4,) = facts.accelerators
    assert (t4.catalogue_name, t4.memory_mib, t4.architecture) == ("T4", 15109, None)
    assert facts.nvidia_driver == "450.80.02"
    assert facts.boot_id is None


def test_an_nvidia_smi_that_fails_is_no_accelerator_and_no_driver():
    facts = facts_of("written_broken_nvidia_smi")
    assert (facts.accelerators, facts.nvidia_driver, facts.cuda_driver) == ((), None, None)
    assert facts.cpu_count == 4


def test_a_tpu_is_told_from_googles_network_card_by_its_pci_number():
    facts = facts_of("written_v5e_vm")
    assert facts.accelerators == (AcceleratorFacts(name="TPU v5e", catalogue_name="v5e-1", architecture="tpu_v5e"),)


def test_a_mac_is_read_through_its_own_tools():
    facts = facts_of("written_macos_arm64")
    assert (facts.os, facts.os_release, facts.cpu_model) == ("Darwin", "macOS 15.6.1", "Apple M2")
    assert facts.cpu_flags == ("asimd", "asimddp", "asimdhp", "i8mm", "bf16")
    assert (facts.memory_mib, facts.memory_available_mib) == (16384, (14211 + 396012 + 4777) * 16384 // (1 << 20))
    assert facts.disk_free_mib == 157302244 // 1024
    assert facts.python == PythonFacts(path="/opt/homebrew/opt/python@3.13/bin/python3.13", version="3.13.7")
    assert facts.boot_id == "6F1C2B9E-70D4-4C38-A1B7-9D0E5A3F8C21"


def test_alpine_has_musl_and_may_have_no_python():
    facts = facts_of("written_alpine_busybox")
    assert (facts.libc, facts.os_release, facts.python) == ("musl 1.2.5", "Alpine Linux v3.22", None)
    assert facts.cpu_flags == ("asimd", "asimddp", "asimdhp")
    assert facts.cpu_model is None
    assert facts.disk_free_mib == 16611052 // 1024


def test_nothing_read_is_nothing_known():
    assert parse_probe("", NOW) == RigFacts(probed_at=NOW)
    assert parse_probe("bash: sh: command not found\n", NOW) == RigFacts(probed_at=NOW)


@given(st.text(alphabet=st.sampled_from("@\nabgpus_endmoryckf0123:=,.%/\t -[]NGPU"), max_size=400))
@settings(max_examples=150, deadline=None)
def test_whatever_a_machine_prints_is_read_without_an_error(output):
    names = ("gpus", "memory", "disk", "python", "cpu", "cpu_count", "tpu", "libc", "os_release", "boot_id", "nvcc")
    parse_probe("".join(f"\n@@{name}\n{output}" for name in names), NOW)


@pytest.mark.parametrize(
    "complaint",
    [
        "No devices were found",
        "Unable to determine the device handle for GPU0000:01:00.0: Unknown Error",
        "Failed to initialize NVML: Driver/library version mismatch",
        "One, two, three, four, five, and a sentence with as many commas as columns",
        "",
    ],
)
def test_a_complaint_of_nvidia_smi_is_not_a_gpu(complaint):
    assert parse_gpus(complaint) == ()


def test_a_gpu_whose_memory_cannot_be_told_is_still_a_gpu():
    (gpu,) = parse_gpus("NVIDIA GB10, [N/A], [N/A], 12.1, 580.95.05, GPU-1a2b3c4d-0000-1111-2222-333344445555")
    assert (gpu.memory_mib, gpu.architecture, gpu.catalogue_name) == (None, "sm_121", None)


def test_a_header_without_a_cuda_version_gives_none():
    assert parse_cuda_driver("| NVIDIA-SMI 580.105.06   Driver Version: 580.105.06   CUDA Version: N/A |") is None


def test_a_tpu_known_only_by_what_the_image_says_is_named_a_guess():
    (tpu,) = parse_tpus("node\t/dev/accel0\nhint\tTPU_ACCELERATOR_TYPE=v5litepod-1")
    assert (tpu.name, tpu.catalogue_name) == ("TPU v5e (a guess from v5litepod-1)", "v5e-1")


@pytest.mark.parametrize(
    "text", ["node\t/dev/vfio/12", "hint\tTPU_ACCELERATOR_TYPE=v5litepod-1", "pci\t0x0042", "node\t/dev/accel0"]
)
def test_half_a_hint_is_no_tpu(text):
    assert parse_tpus(text) == ()


def test_the_newest_python_is_chosen_by_number_and_not_by_letter():
    found = "python\tfound\t/usr/bin/python3.9\t3.9.2\npython\tfound\t/a\t3.11.2\npython\tfound\t/b\t3.14.0"
    assert choose_python(found) == PythonFacts(path="/b", version="3.14.0")


def test_a_preferred_python_that_is_too_old_is_passed_over():
    found = "python\tpreferred\t/old\t3.10.1\npython\tfound\t/new\t3.12.1"
    assert choose_python(found) == PythonFacts(path="/new", version="3.12.1")


def test_memory_that_only_macos_counts_in_pages_needs_the_page_size():
    assert parse_memory("hw.memsize: 17179869184\nPages free: 100.") == (16384, None)


def test_a_disk_that_is_overfull_has_no_space_rather_than_less_than_none():
    assert parse_disk_free_mib("h\n/dev/sda1 100 110 -10 110% /") == 0


# The script itself, run for real.

SHELLS = [["sh"], ["dash"], ["bash"], ["bash", "--posix"], ["busybox", "sh"]]


def run_script(shell, home, *, path, tmp_path, python=""):
    environment = {"HOME": str(tmp_path), "PATH": str(path)}
    return subprocess.run(
        [shutil.which(shell[0]) or shell[0], *shell[1:], "-s", "--", str(home), python],
        input=PROBE_SCRIPT.encode(),
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_the_script_ends_well_in_every_shell(shell, tmp_path):
    if shutil.which(shell[0]) is None:
        pytest.skip(f"{shell[0]} is not installed")
    result = run_script(shell, tmp_path / "not" / "yet", path=os.environ["PATH"], tmp_path=tmp_path)
    assert (result.returncode, result.stderr) == (0, b"")
    facts = parse_probe(result.stdout.decode(), NOW)
    assert facts.os == os.uname().sysname
    assert facts.hostname == os.uname().nodename
    assert facts.memory_mib is not None
    assert facts.disk_free_mib is not None
    assert facts.cpu_count == len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def test_the_script_ends_well_where_most_tools_are_missing(tmp_path):
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "uname").symlink_to(shutil.which("uname") or "/bin/uname")
    result = run_script(["sh"], tmp_path / "rig", path=bare, tmp_path=tmp_path)
    assert (result.returncode, result.stderr) == (0, b"")
    assert "end" in sections(result.stdout.decode())
    facts = parse_probe(result.stdout.decode(), NOW)
    assert facts.os == os.uname().sysname
    assert (facts.disk_free_mib, facts.docker, facts.accelerators) == (None, None, ())


def test_the_script_asks_the_preferred_python_and_takes_a_tilde_for_the_home(tmp_path):
    (tmp_path / "venv").symlink_to(Path(sys.executable).parent)
    result = run_script(
        ["sh"], "~/rig", path=os.environ["PATH"], tmp_path=tmp_path, python=f"~/venv/{Path(sys.executable).name}"
    )
    facts = parse_probe(result.stdout.decode(), NOW)
    assert facts.python is not None
    assert facts.python.path.startswith(str(tmp_path / "venv"))
    assert facts.python.version == "{}.{}.{}".format(*sys.version_info[:3])


def test_shell_characters_in_the_home_are_only_letters(tmp_path):
    home = f"{tmp_path}/$(touch {tmp_path}/hurt)/`touch {tmp_path}/hurt`;touch {tmp_path}/hurt;'\"\n&"
    result = run_script(["sh"], home, path=os.environ["PATH"], tmp_path=tmp_path)
    assert result.returncode == 0
    assert not (tmp_path / "hurt").exists()
    assert parse_probe(result.stdout.decode(), NOW).disk_free_mib is not None


def write_tool(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(stat.S_IRWXU)


def test_the_script_asks_an_old_driver_again_without_the_column_it_does_not_know(tmp_path):
    tool = """case $1 in
        *compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2 ;;
        --query*) echo 'Tesla T4, 15109, 0, 450.80.02, GPU-9a8b7c6d-1234-5678-9abc-def012345678' ;;
        *) echo '| NVIDIA-SMI 450.80.02    Driver Version: 450.80.02    CUDA Version: 11.0     |'
           echo '|    0   N/A  N/A      1234      C   secret-process-name   100MiB |' ;;
    esac"""
    write_tool(tmp_path / "bin", "nvidia-smi", tool)
    result = run_script(["sh"], tmp_path, path=f"{tmp_path / 'bin'}:{os.environ['PATH']}", tmp_path=tmp_path)
    facts = parse_probe(result.stdout.decode(), NOW)
    assert [gpu.catalogue_name for gpu in facts.accelerators] == ["T4"]
    assert (facts.nvidia_driver, facts.cuda_driver) == ("450.80.02", "11.0")
    assert b"secret" not in result.stdout


def test_no_tool_eats_the_script(tmp_path):
    write_tool(tmp_path / "bin", "docker", "cat; echo Docker version 1.2.3, build x")
    # bash reads a script from a pipe byte by byte, so that what follows is still there to be eaten.
    shell = "bash" if shutil.which("bash") else "sh"
    result = run_script([shell], tmp_path, path=f"{tmp_path / 'bin'}:{os.environ['PATH']}", tmp_path=tmp_path)
    assert sections(result.stdout.decode())["docker"] == "Docker version 1.2.3, build x"
    assert "end" in sections(result.stdout.decode())


@pytest.mark.anyio
async def test_this_machine_is_probed_over_its_connection(tmp_path):
    facts = await probe(LocalConnection(), str(tmp_path), sys.executable)
    assert facts.python is not None
    assert facts.python.version == "{}.{}.{}".format(*sys.version_info[:3])
    assert facts.probed_at is not None
    assert facts.probed_at.endswith("+00:00")


class CutConnection(LocalConnection):
    """A way to the machine that ends in the middle of the answer."""

    async def run(self, argv, *, stdin=b"", env=None, timeout_s=60.0):
        return CommandResult(argv=tuple(argv), exit_code=0, stdout=b"@@os\nLinux\n@@hostn", stderr=b"")


@pytest.mark.anyio
async def test_an_answer_that_ends_early_is_an_error_and_not_half_a_machine():
    with pytest.raises(CommandError, match="ends early"):
        await probe(CutConnection(), "/x")


def test_a_real_h200_is_known_by_its_driver():
    facts = facts_of("recorded_h200")
    assert (facts.nvidia_driver, facts.cuda_driver, facts.cuda_toolkit) == ("580.159.04", "13.0", "13.0.88")
    assert (facts.cpu_count, facts.memory_mib, facts.docker) == (16, 128887, None)
    assert facts.python == PythonFacts(path="/usr/local/bin/python3.12", version="3.12.3")
    assert facts.accelerators == (
        AcceleratorFacts(
            name="NVIDIA H200",
            catalogue_name="H200",
            memory_mib=143771,
            memory_used_mib=0,
            architecture="sm_90",
            uuid="GPU-00000000-0000-0000-0000-000000000000",
        ),
    )
