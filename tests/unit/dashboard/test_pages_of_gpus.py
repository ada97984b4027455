"""What the pages of Windows and of several GPUs say to write is a site file, and Nova takes what becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gpuyard.site.load import LoadedSite
from tests.support.libvirt_driver import guest_features, hardware, image_meta, objects, validators
from tests.support.sites import site
from tests.support.sysfs import TITAN_XP, Sysfs

ROOT = Path(__file__).parents[3]


def shown(page: str) -> dict[str, Any]:
    """The site file of a page, as far as it goes."""
    text = (ROOT / "docs/how-to" / page).read_text()
    document: dict[str, Any] = YAML(typ="safe").load(text.partition("```yaml\n")[2].partition("```")[0])
    return document


@pytest.fixture
def windows(tmp_path: Path) -> LoadedSite:
    machine = Sysfs().function("01:00.0", TITAN_XP, "0300", 13, driver="vfio-pci", boot_vga="0")
    return site(tmp_path, shown("windows-guests.md"), {"gpu-1": machine})


def test_nova_knows_every_property_of_an_image_for_windows(windows: LoadedSite) -> None:
    (image,) = windows.compiled.images
    properties = {name: value for name, value in image.properties.items() if name != "os_type"}  # the server's own
    meta = image_meta(properties)
    assert {name for name in properties if not meta.properties.obj_attr_is_set(name)} == set()
    assert (meta.properties.hw_machine_type, meta.properties.hw_firmware_type) == ("q35", "uefi")
    flavor = objects.Flavor(extra_specs={})
    assert hardware.get_secure_boot_constraint(flavor, meta) == "optional"
    assert hardware.get_vtpm_constraint(flavor, meta).version == "2.0"
    assert not image_meta({"hw_hide_hypervisor_id": "true"}).properties.obj_attr_is_set("img_hide_hypervisor_id")


def test_a_hypervisor_is_hidden_by_the_pool_or_by_the_image(windows: LoadedSite) -> None:
    (flavor,) = windows.compiled.flavors
    for name, value in flavor.extra_specs.items():
        validators.validate(name, value)
    hidden, other_vendor = '<hidden state="on"/>', '<vendor_id state="on"'
    by_pool = guest_features("windows", flavor.extra_specs, {})
    by_image = guest_features("windows", {}, {"img_hide_hypervisor_id": "true"})
    for features in (by_pool, by_image):
        assert hidden in features
        assert other_vendor in features
    plain, linux = guest_features("windows", {}, {}), guest_features("linux", flavor.extra_specs, {})
    assert (hidden in plain, other_vendor in plain, "<vapic" in plain) == (False, False, True)
    assert (hidden in linux, "<vapic" in linux) == (True, False)


def test_two_of_one_model_are_any_two_or_a_whole_group(tmp_path: Path) -> None:
    """On the machine with six V100, of which four are in pairs."""
    gpus_by_flavor = {flavor.name: flavor.gpus for flavor in site(tmp_path, shown("several-gpus.md")).compiled.flavors}
    assert gpus_by_flavor == {"v100.1": 1, "v100.2": 2, "v100.pair-a": 2, "v100.pair-b": 2}
