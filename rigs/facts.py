"""What was measured on a rig; never assumed. A fact that could not be read is None."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Border(BaseModel):
    """Base of every value that crosses a process border: strict about keys, frozen once made."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AcceleratorFacts(Border):
    """One device, as its own driver tells it."""

    name: str
    """As the driver prints it, e.g. `NVIDIA L4`."""
    catalogue_name: str | None = None
    """Its entry in `rigs.accelerators`, where there is one."""
    memory_mib: int | None = None
    memory_used_mib: int | None = None
    architecture: str | None = None
    """`sm_89`, `tpu_v5e`."""
    uuid: str | None = None


class PythonFacts(Border):
    path: str
    version: str
    """`3.11.7`."""


class RigFacts(Border):
    """The machine as the probe found it."""

    hostname: str | None = None
    os: str | None = None
    """`Linux` or `Darwin`."""
    os_release: str | None = None
    """`Debian GNU/Linux 12 (bookworm)`."""
    kernel: str | None = None
    machine: str | None = None
    """`x86_64`, `aarch64`, `arm64`."""
    libc: str | None = None
    """`glibc 2.36`, `musl 1.2.4`."""
    cpu_model: str | None = None
    cpu_count: int | None = None
    cpu_flags: tuple[str, ...] = ()
    """Those that decide which binaries run: avx2, fma, f16c, bmi2, avx512f, avx512_bf16, amx_int8, asimd ..."""
    memory_mib: int | None = None
    memory_available_mib: int | None = None
    disk_free_mib: int | None = None
    """Where rig_home lies, or would lie."""
    python: PythonFacts | None = None
    """The newest interpreter >= 3.11 found; None where there is none."""
    docker: str | None = None
    nvidia_driver: str | None = None
    cuda_driver: str | None = None
    """The newest CUDA that the driver serves."""
    cuda_toolkit: str | None = None
    """nvcc's version."""
    accelerators: tuple[AcceleratorFacts, ...] = ()
    boot_id: str | None = None
    probed_at: str | None = None
    """ISO 8601, UTC."""
