"""Nova's libvirt driver as a library: what it makes of the options about mediated devices, and of a server's flavor and
image for its XML. It has no libvirt."""

from __future__ import annotations

import warnings
from collections import defaultdict
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

import tests.support.services  # noqa: F401  # decides about eventlet before anything of Nova is imported

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from nova import exception, objects
    from nova.api.validation.extra_specs import validators
    from nova.virt import hardware
    from nova.virt.libvirt import config as libvirt_xml
    from nova.virt.libvirt import driver as libvirt

__all__ = ["exception", "guest_features", "hardware", "image_meta", "mdev_driver", "objects", "validators"]


def mdev_driver(conf: Any) -> Any:
    """A driver that has read the mdev options of a configuration, as `LibvirtDriver` does when it is made."""
    driver = libvirt.LibvirtDriver.__new__(libvirt.LibvirtDriver)
    driver.pgpu_type_mapping = defaultdict(str)
    driver.mdev_class_mapping = defaultdict(lambda: "VGPU")
    driver.mdev_classes, driver.mdev_type_max_mapping = set(), defaultdict(str)
    driver.pgpu_type_default, driver.virtual_mdevs = None, set()
    with patch.object(libvirt, "CONF", conf):
        driver.supported_vgpu_types = driver._get_supported_vgpu_types()
    return driver


def image_meta(properties: dict[str, str]) -> Any:
    """What Nova reads of an image's properties; those that it does not know are not in it."""
    objects.register_all()
    return objects.ImageMeta.from_dict({"id": str(UUID(int=1)), "properties": properties})


def guest_features(os_type: str, extra_specs: dict[str, str], properties: dict[str, str]) -> str:
    """The XML of the features that a server of this flavor and image has."""
    driver = libvirt.LibvirtDriver.__new__(libvirt.LibvirtDriver)
    driver._host = SimpleNamespace(supports_mem_encryption=False)
    guest, meta = libvirt_xml.LibvirtConfigGuest(), image_meta({"hw_architecture": "x86_64", **properties})
    driver._set_features(guest, os_type, meta, objects.Flavor(extra_specs=extra_specs))
    return "".join(feature.to_xml() for feature in guest.features)
