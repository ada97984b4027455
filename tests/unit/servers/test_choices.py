"""In which order images are offered, and names of servers."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.servers.choices import DRIVER_FITS, DRIVER_WRONG, NAME, NO_DRIVER, TOO_LARGE, order_images, suggested_name
from gpuyard.site.gpu_generations import GENERATIONS
from tests.support.personal_clouds import FLAVOR, PLAIN, UBUNTU

VOLTA = GENERATIONS["GV"]


def ranks(*images: object, gpu: str = "Tesla V100", generation: object = VOLTA) -> list[tuple[str, int]]:
    choices = order_images(images, FLAVOR, gpu, generation)  # type: ignore[arg-type]
    return [(choice.name, choice.rank) for choice in choices]


def test_images_with_a_driver_for_the_gpu_come_first() -> None:
    newer = replace(UBUNTU, id="i-595", name="a-595", driver="595")
    huge = replace(UBUNTU, id="i-huge", name="a-huge", disk=500)
    assert ranks(PLAIN, newer, huge, UBUNTU) == [
        ("ubuntu-24.04-580", DRIVER_FITS),  # 580 is the last branch for Volta
        ("debian-12", NO_DRIVER),
        ("a-595", DRIVER_WRONG),
        ("a-huge", TOO_LARGE),
    ]
    (note,) = [choice.note for choice in order_images([newer], FLAVOR, "Tesla V100", VOLTA)]
    assert note == "driver 595 does not drive Tesla V100"


def test_a_driver_is_not_judged_for_an_unknown_gpu_nor_asked_for_without_one() -> None:
    newer = replace(UBUNTU, driver="595")
    assert ranks(newer, generation=None) == [(newer.name, DRIVER_FITS)]
    assert ranks(PLAIN, gpu="") == [(PLAIN.name, DRIVER_FITS)]


def test_a_flavor_without_a_disk_of_its_own_has_the_image_s_size() -> None:
    large = replace(UBUNTU, disk=500)
    (choice,) = order_images([large], replace(FLAVOR, disk=0), "Tesla V100", VOLTA)
    assert choice.rank == DRIVER_FITS


@given(st.text(), st.sampled_from(["", "t4", "titan-xp"]))
def test_suggested_names_are_host_names(user: str, pool: str) -> None:
    assert NAME.fullmatch(suggested_name(user, pool))
