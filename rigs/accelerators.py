"""The chips that rigbench knows: what they hold, how fast they read it, and what they cannot do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from rigs.errors import UnknownNameError

Ability = Literal["bf16", "fp8", "tensor_cores"]
"""A number format that the chip computes in by itself, or a unit that it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One kind of chip. A figure that no source confirms is None, never a guess."""

    name: str
    memory_mib: int | None
    """As the driver shows it, not as the box says."""
    bandwidth_gb_s: float | None
    """Peak of the chip's own memory, in 10^9 bytes a second."""
    architecture: str | None
    lacks: frozenset[Ability]
    source: str
    """Where each figure comes from, in words."""
    driver_names: frozenset[str] = frozenset()
    """Names under which a driver or a probe shows it, without the maker's."""


TURING_LACKS: Final[frozenset[Ability]] = frozenset({"bf16", "fp8"})

CATALOGUE: Final = (
    Accelerator(
        name="RTX 3050 OEM",
        memory_mib=8192,
        bandwidth_gb_s=224.0,
        architecture="sm_86",
        lacks=frozenset({"fp8"}),
        source="Memory and architecture: seen on the desktop card by the published runs. Bandwidth: press reports of "
        "the OEM variant, 14 Gbit/s over 128 bits, the same memory as the retail card. No fp8: fp8 came with sm_89.",
        # The driver prints the same name for the OEM and the retail card; both have this memory and architecture.
        driver_names=frozenset({"RTX 3050", "RTX 3050 OEM"}),
    ),
    Accelerator(
        name="GTX 1650 Ti",
        memory_mib=4096,
        bandwidth_gb_s=None,
        architecture="sm_75",
        lacks=frozenset({*TURING_LACKS, "tensor_cores"}),
        source="Memory and architecture: seen on the laptop (Max-Q) by the published runs. Bandwidth: not one figure; "
        "notebook reviews name memory of 10 Gbit/s and of 12 Gbit/s under the same name. No tensor cores: reviews of "
        "its chip, TU117. No bf16, no fp8: Turing.",
        driver_names=frozenset({"GTX 1650 Ti", "GTX 1650 Ti with Max-Q Design"}),
    ),
    Accelerator(
        name="T4",
        memory_mib=15360,
        bandwidth_gb_s=320.0,
        architecture="sm_75",
        lacks=TURING_LACKS,
        source="Memory: the driver's figure in the published runs, error correction on. Bandwidth: a deviceQuery "
        "listing, 5001 MHz, two transfers a cycle, 256 bits. No bf16, no fp8: Turing.",
        driver_names=frozenset({"T4"}),
    ),
    Accelerator(
        name="L4",
        memory_mib=23034,
        bandwidth_gb_s=300.0,
        architecture="sm_89",
        lacks=frozenset(),
        source="Memory: the driver's figure on EC2 G6 in the published runs, error correction on. Bandwidth: vendor's "
        "figure as dealers and comparisons repeat it (192 bits).",
        driver_names=frozenset({"L4"}),
    ),
    Accelerator(
        name="v5e-1",
        memory_mib=16128,
        bandwidth_gb_s=819.0,
        architecture="tpu_v5e",
        lacks=frozenset({"fp8"}),
        source="Memory: 15.75 GiB visible to programs in the published runs. Bandwidth: Google's page on TPU v5e (an "
        "older edition of it says 800 GiB/s). No fp8 in the matrix units: reported by gemma4-dev.",
        driver_names=frozenset({"TPU v5e"}),
    ),
    Accelerator(
        name="H200",
        memory_mib=143771,
        bandwidth_gb_s=4800.0,
        architecture="sm_90",
        lacks=frozenset(),
        source="Memory: nvidia-smi on such a card. Bandwidth: vendor's datasheet for the SXM card; a copy on one moved "
        "about 4,300 GB/s.",
        driver_names=frozenset({"H200"}),
    ),
    Accelerator(
        name="cpu",
        memory_mib=None,
        bandwidth_gb_s=None,
        architecture=None,
        lacks=frozenset(),
        source="Every machine differs: its memory and its flags are read by the probe, never taken from here.",
    ),
)

_BY_NAME: Final = {accelerator.name: accelerator for accelerator in CATALOGUE}
_BY_DRIVER_NAME: Final = {shown: accelerator for accelerator in CATALOGUE for shown in accelerator.driver_names}

MEMORY_TOLERANCE: Final = 0.1
"""The same card shows about 7 % more memory with error correction off; a variant or a slice differs by far more."""


def by_name(name: str) -> Accelerator:
    """The catalogue's entry.

    Raises:
        UnknownNameError: listing the names there are.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise UnknownNameError("accelerator", name, _BY_NAME) from None


def recognise(driver_name: str, memory_mib: int | None) -> Accelerator | None:
    """The entry a driver means by a name, if its memory fits too; None for chips that are not in the catalogue.

    A laptop variant, a slice of a card, or a card of the same name with other memory is another chip: None.
    """
    accelerator = _BY_DRIVER_NAME.get(_without_maker(driver_name))
    if accelerator is None or memory_mib is None or accelerator.memory_mib is None:
        return accelerator
    difference = abs(memory_mib - accelerator.memory_mib)
    return accelerator if difference <= MEMORY_TOLERANCE * accelerator.memory_mib else None


def _without_maker(driver_name: str) -> str:
    words = driver_name.split()
    while words and words[0] in {"NVIDIA", "Tesla", "GeForce"}:
        words.pop(0)
    return " ".join(words)
