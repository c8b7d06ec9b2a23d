import pytest

from rigs.accelerators import CATALOGUE, by_name, recognise
from rigs.errors import UnknownNameError


def test_the_catalogue_holds_the_accelerators_of_the_design_in_its_order():
    assert [accelerator.name for accelerator in CATALOGUE] == [
        "RTX 3050 OEM",
        "GTX 1650 Ti",
        "T4",
        "L4",
        "v5e-1",
        "H200",
        "cpu",
    ]


def test_every_entry_says_where_its_figures_come_from():
    assert [accelerator.name for accelerator in CATALOGUE if not accelerator.source] == []


@pytest.mark.parametrize("name", [accelerator.name for accelerator in CATALOGUE])
def test_each_entry_is_found_by_its_name(name):
    assert by_name(name).name == name


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"Unknown accelerator 'L5'\. Available: .*L4.*v5e-1"):
        by_name("L5")


@pytest.mark.parametrize(
    ("driver_name", "memory_mib", "name"),
    [
        ("NVIDIA L4", 23034, "L4"),
        ("NVIDIA L4", 24570, "L4"),  # error correction off
        ("Tesla T4", 15360, "T4"),
        ("NVIDIA T4", 15360, "T4"),
        ("NVIDIA GeForce RTX 3050", 8192, "RTX 3050 OEM"),
        ("NVIDIA GeForce GTX 1650 Ti with Max-Q Design", 4096, "GTX 1650 Ti"),
        ("GeForce GTX 1650 Ti", 3911, "GTX 1650 Ti"),
        ("NVIDIA H200", 143771, "H200"),
        ("TPU v5e", None, "v5e-1"),
        ("NVIDIA L4", None, "L4"),
    ],
)
def test_a_drivers_name_is_recognised(driver_name, memory_mib, name):
    accelerator = recognise(driver_name, memory_mib)
    assert accelerator is not None
    assert accelerator.name == name


@pytest.mark.parametrize(
    ("driver_name", "memory_mib"),
    [
        ("NVIDIA GeForce RTX 3050 Laptop GPU", 4096),
        ("NVIDIA GeForce RTX 3050", 6144),  # the 6 GB card: other memory, other bandwidth
        ("NVIDIA L40S", 46068),
        ("NVIDIA L4-6Q", 6144),
        ("NVIDIA GeForce GTX 1650", 4096),
        ("NVIDIA H200 MIG 1g.18gb", 18176),
        ("cpu", None),
        ("", None),
        ("NVIDIA", None),
    ],
)
def test_a_chip_that_is_not_in_the_catalogue_is_not_taken_for_one_that_is(driver_name, memory_mib):
    assert recognise(driver_name, memory_mib) is None


def test_turing_lacks_bf16_and_fp8_and_the_small_one_tensor_cores_too():
    assert by_name("T4").lacks == {"bf16", "fp8"}
    assert by_name("GTX 1650 Ti").lacks == {"bf16", "fp8", "tensor_cores"}
    assert {name for name in ("RTX 3050 OEM", "v5e-1") if by_name(name).lacks == {"fp8"}} == {"RTX 3050 OEM", "v5e-1"}
    assert by_name("L4").lacks == by_name("H200").lacks == frozenset()
