"""Options of one service within a process that has several: in force while it starts, gone after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from gpuyard_lab.plan import EXAMPLE_SITE, plan_of_site
from gpuyard_lab.services.options import HOST_OPTIONS, SCHEDULER_OPTIONS, options_in_force, read_options


@pytest.fixture
def conf() -> Any:
    made = cfg.ConfigOpts()
    made.register_opts([cfg.FloatOpt("ram_allocation_ratio"), cfg.FloatOpt("cpu_allocation_ratio", default=0.5)])
    made.register_opts(
        [cfg.MultiStrOpt("device_spec", default=[]), cfg.BoolOpt("report_in_placement", default=False)], group="pci"
    )
    made([])
    return made


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "host.conf"
    path.write_text(text)
    return path


def test_options_are_in_force_for_the_block_only_with_their_types(conf: Any, tmp_path: Path) -> None:
    text = "[DEFAULT]\nram_allocation_ratio = 1.5\n[pci]\nreport_in_placement = yes\ndevice_spec = a\ndevice_spec = b\n"
    with options_in_force(conf, file(tmp_path, text), HOST_OPTIONS):
        assert (conf.ram_allocation_ratio, conf.cpu_allocation_ratio) == (1.5, 0.5)
        assert (conf.pci.device_spec, conf.pci.report_in_placement) == (["a", "b"], True)
    assert (conf.ram_allocation_ratio, conf.pci.device_spec, conf.pci.report_in_placement) == (None, [], False)


def test_the_last_value_of_an_option_with_one_value_counts(conf: Any, tmp_path: Path) -> None:
    path = file(tmp_path, "[DEFAULT]\nram_allocation_ratio = 1.5\nram_allocation_ratio = 2\n")
    with options_in_force(conf, path, HOST_OPTIONS):
        assert conf.ram_allocation_ratio == 2.0


def test_they_are_gone_after_an_error_too(conf: Any, tmp_path: Path) -> None:
    path = file(tmp_path, "[pci]\ndevice_spec = a\n")
    with pytest.raises(ZeroDivisionError), options_in_force(conf, path, HOST_OPTIONS):
        raise ZeroDivisionError
    assert conf.pci.device_spec == []


def test_an_option_that_would_not_be_followed_is_refused(conf: Any, tmp_path: Path) -> None:
    path = file(tmp_path, "[pci]\ndevice_spec = a\nalias = b\n")
    with (
        pytest.raises(ValueError, match=r"cannot set \[pci\] alias for one service alone"),
        options_in_force(conf, path, HOST_OPTIONS),
    ):
        pass
    assert conf.pci.device_spec == []


def test_the_lab_knows_every_option_that_sites_compile_to(tmp_path: Path) -> None:
    plan = plan_of_site(EXAMPLE_SITE)
    for host in plan.hosts:
        assert set(read_options(file(tmp_path, host.config))) <= HOST_OPTIONS
    assert set(read_options(file(tmp_path, plan.scheduler))) <= SCHEDULER_OPTIONS
