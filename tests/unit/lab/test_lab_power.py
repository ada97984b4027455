"""Hosts of the lab are switched off and on by what is written for the process of Nova, which says what is so."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gpuyard_lab.errors import LabError
from gpuyard_lab.files import private_folder, write_json
from gpuyard_lab.host_power import hosts_off, switch
from gpuyard_lab.plan import LabHost, LabPlan
from gpuyard_lab.settings import Lab

PLAN = LabPlan((LabHost("gpu1", 8, 1024, 10), LabHost("gpu2", 8, 1024, 10)))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    made = Lab(tmp_path)
    private_folder(made.run)
    PLAN.save(made.plan_file)
    write_json(made.hosts_ready, {})
    return made


def test_it_returns_when_it_is_so(lab: Lab) -> None:
    done = threading.Event()

    def nova() -> None:
        while not done.wait(0.01):
            write_json(lab.hosts_off, sorted(hosts_off(lab.hosts_wanted_off)))

    thread = threading.Thread(target=nova)
    thread.start()
    try:
        for name in ("gpu1", "gpu2"):
            switch(lab, name, on=False)
        assert hosts_off(lab.hosts_off) == {"gpu1", "gpu2"}
        switch(lab, "gpu1", on=True)
        assert hosts_off(lab.hosts_off) == {"gpu2"}
    finally:
        done.set()
        thread.join()


def test_it_says_when_nobody_does_it(lab: Lab) -> None:
    with pytest.raises(LabError, match=r"nova-compute of gpu1 did not end in 0 s; .*nova.log says why"):
        switch(lab, "gpu1", on=False, patience=0)


def test_it_refuses_what_is_not_there(lab: Lab) -> None:
    with pytest.raises(LabError, match="has no host 'gpu3'; it has gpu1, gpu2"):
        switch(lab, "gpu3", on=False)
    lab.hosts_ready.unlink()
    with pytest.raises(LabError, match="no lab runs in"):
        switch(lab, "gpu1", on=False)
