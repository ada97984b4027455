"""What the pages show to be typed, and where it is tried: each line by a test that types it on the lab, or by one that
is named."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[2]
TYPED = re.compile(r"^ {4}(?:\(umask 077; )?(?:sudo )?(?:gpuyard|openstack|python3? -[mc]) .*$", re.MULTILINE)


def typed_on(page: str) -> list[str]:
    """The lines of a page that call our programs or OpenStack's, as a shell takes them, in the order in which they
    stand."""
    text = (ROOT / page).read_text().replace("\\\n", " ")
    return [re.sub(r" {2,}", " ", line.split("  #")[0]).strip() for line in TYPED.findall(text)]


def in_future(line: str, today: date) -> str:
    """Days of the page's December, as many days from today."""
    return re.sub(r"2026-12-(\d\d)", lambda day: (today + timedelta(days=int(day[1]))).isoformat(), line)


@dataclass(frozen=True)
class OnTheLab:
    """How a page is typed there."""

    cloud: str = "gpuyard-lab"
    words: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Names of the page -> those of the lab."""
    before: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """A line, as it is on the page -> what the page takes for granted there, in Bash."""
    refused: tuple[str, ...] = ()
    """Lines that end with 3, since there is something to say against it, as on the page."""

    def script(self, page: str, today: date) -> str:
        """All that the page shows to be typed, in its order, for Bash; it ends at the first line that does not end as
        the page says, and says which."""
        lines = ["set -o pipefail", TYPE, f"export OS_CLOUD={self.cloud}"]
        for shown in typed_on(page):
            if not any(words in shown for words in ELSEWHERE):
                line, code = shown, 3 if shown in self.refused else 0
                for word, value in {**SITE, **self.words}.items():
                    line = line.replace(word, value)
                lines += [self.before.get(shown, ":"), f"typed {code} {shlex.quote(in_future(line, today))}"]
        return "\n".join(lines)


TYPE = 'typed() { eval "$2"; local code=$?; [ $code = "$1" ] || { echo "it ended with $code: $2" >&2; exit 1; }; }'
ELSEWHERE = {
    "gateway render": "tests/unit/deployment/test_gateway.py",
    "deploy plan": "tests/integration/test_deploy.py",
    "deploy run": "tests/integration/test_deploy.py",
    "host apply": "tests/virtual/test_prepare.py",
    "host bundle": "tests/unit/host/test_host_watch.py",
    "host campaign": "tests/integration/test_campaign.py",
    "host maintenance allow": "tests/unit/health/test_maintenance_api.py",
    "host maintenance done gpu-3": "tests/integration/test_campaign.py",
    "host check": "tests/virtual/test_prepare.py",
    "host drain": "tests/integration/test_host_moves.py",
    "host leftovers": "tests/integration/test_host_moves.py",
    "host return": "tests/integration/test_host_moves.py",
    "host plan": "tests/virtual/test_prepare.py",
    "host record": "tests/virtual/test_recordings.py",
    "host undo": "tests/virtual/test_prepare.py",
    "host verify": "tests/virtual/test_prepare.py",
    "host watch --once": "tests/virtual/test_services.py",
    "image build": "tests/integration/test_built_image.py",
    "image check": "tests/integration/test_built_image.py",
    "image list": "tests/integration/test_images.py",
    "image promote": "tests/integration/test_images.py",
    "image prune": "tests/integration/test_images.py",
    "image upload": "tests/integration/test_images.py",
    "gpuyard_lab.github": "tests/unit/lab/test_github_server.py",
    "db restore": "tests/unit/server/test_db_command.py",
    "db upgrade": "tests/unit/server/test_db_command.py",
    "gpuyard serve": "tests/integration/test_serve.py",
    "lab exercise": "tests/integration/test_exercise.py",
    "site adopt": "tests/integration/test_adopt.py",
    "site bootstrap": "tests/integration/test_bootstrap.py",
    "site deploy": "tests/integration/test_kolla.py",
    "site render --site site.yaml --kolla": "tests/integration/test_kolla.py",
    "venv /opt/kolla": "tests/support/kolla.py",
    "venv /opt/gpuyard": "tests/integration/test_wheel.py",
}
"""Words of a line -> the test that runs this command, with words of its own: it needs a host, root, or much time."""
CIRUN = (
    "runners: [{name: gpu, cloud: openstack, instance_type: gpu_medium, machine_image: tiny, region: RegionOne, "
    "labels: [cirun-gpu]}]"
)
RECORDING = ROOT / "lab/src/gpuyard_lab/recordings/epyc-v100.json"
SITE = {"mycloud": "gpuyard-lab", "--site site.yaml": '--site "$GPUYARD_SITE"', "https://gpus.example.org": "$PORTAL"}
BOOK = "BOOKING=$(gpuyard booking create -f value -c id --comment x --pool"
ON_THE_LAB = {
    "docs/explanation/iommu-groups.md": OnTheLab(
        words={"lab/src/gpuyard_lab/recordings/epyc-v100.json": str(RECORDING)}
    ),
    "docs/how-to/account-for-use.md": OnTheLab(),
    "docs/how-to/back-up-and-restore.md": OnTheLab(
        words={"/var/backups/gpuyard": "backups"},
        before={
            "gpuyard db backup /var/backups/gpuyard --keep 14": "mkdir backups",
        },
    ),
    "docs/how-to/book-a-gpu.md": OnTheLab(
        cloud="gpuyard-lab-demo",
        words={"BOOKING": "$BOOKING"},
        before={
            "gpuyard booking show BOOKING": "BOOKING=$(gpuyard booking list --mine -f value -c ID | head -n 1)",
            "gpuyard booking open BOOKING": f"{BOOK} t4 --end +1h --wait)",
            "gpuyard booking edit BOOKING --start '2026-12-02 9:00' --end +8h": "ACTIVE=$BOOKING; "
            f"{BOOK} t4 --start +2d --end +1h)",
            "gpuyard booking end BOOKING": "BOOKING=$ACTIVE",
            "gpuyard booking cancel BOOKING": f"{BOOK} t4 --start +2d --end +1h)",
            "gpuyard booking edit BOOKING --start '2026-12-02 10:00' --series": f"{BOOK} titan-xp --end +4h"
            " --start \"$(date -d '+2 days' +%F) 8:00\" --repeat 'FREQ=WEEKLY;COUNT=2' | head -n 1)",
            "gpuyard booking waitlist": f"{BOOK} k40c --end +1h); LATER=$BOOKING; {BOOK} k40c --end +2h --waitlist)",
            "gpuyard booking accept BOOKING": 'gpuyard booking end "$LATER"; until gpuyard booking show "$BOOKING" '
            "-f value -c state | grep -q offered; do sleep 0.5; done",
            "gpuyard booking feed create": 'gpuyard booking end "$BOOKING"',
        },
    ),
    "docs/how-to/build-images.md": OnTheLab(),
    "docs/how-to/configure-runners.md": OnTheLab(
        words={"geo-forge/geotorch-feedstock": "demo/science", "cirun-gpu": "gpuyard-v100", ".cirun ": "cirun "},
        refused=(
            (
                "gpuyard runner why geo-forge/geotorch-feedstock --label cirun-gpu --user ada --event pull_request "
                "--fork contributor"
            ),
        ),
        before={"gpuyard runner lint .cirun --site site.yaml": f"mkdir cirun; echo '{CIRUN}' > cirun/.cirun.yml"},
    ),
    "docs/how-to/deploy-with-kolla.md": OnTheLab(words={"--user nova": "--user demo", "--user-domain default": ""}),
    "docs/how-to/lint-nova-conf.md": OnTheLab(
        words={
            "/etc/nova/nova.conf": "$GPUYARD_LAB_STATE/etc/nova/nova.conf",
            "/etc/kolla/config --recording gpu1.json": f"$GPUYARD_LAB_STATE/etc/nova/nova.conf --recording {RECORDING}",
        },
        refused=(
            "gpuyard site lint /etc/nova/nova.conf",
            (
                "openstack flavor list --all --long -f json | gpuyard site lint /etc/kolla/config --recording "
                "gpu1.json --flavors -"
            ),
        ),
    ),
    "docs/how-to/maintain-a-host.md": OnTheLab(
        words={"gpu-1": "c4130"},
        before={
            "gpuyard host maintenance done gpu-1 --comment '6.12 runs'": "gpuyard host maintenance start c4130; until "
            "gpuyard host maintenance list -f value -c State | grep -q 'in work'; do sleep 0.5; done",
        },
    ),
    "docs/how-to/monitor-with-prometheus.md": OnTheLab(),
    "docs/how-to/prepare-a-runner-image.md": OnTheLab(
        cloud="gpuyard-lab-demo",
        words={"IMAGE --flavor gpu.v100": "tiny --flavor gtx-titan.8cores --no-network"},
    ),
    "docs/how-to/roll-out-pci-in-placement.md": OnTheLab(),
    "docs/how-to/run-bookings.md": OnTheLab(
        words={
            "gpu-01/0000:3b:00.0": "$GPU",
            "gpu-01": "c4130",
            "HOLD": "$HOLD",
            "'2026-12-07 6:00'": '"$MONDAY 6:00"',
            "--site changed.yaml": '--site "$GPUYARD_SITE"',
        },
        before={
            "gpuyard gpu hold gpu-01/0000:3b:00.0 --start '2026-12-05 8:00' --end +8h --comment 'new fan'": "GPU=$("
            "gpuyard gpu list --pool titan-xp -f value -c Host -c Address | head -n 1 | tr ' ' /)",
            "gpuyard gpu hold --host gpu-01 --start '2026-12-07 6:00' --end +4h --repeat"
            " 'FREQ=MONTHLY;BYDAY=1MO;COUNT=6' --comment patches": "MONDAY=$(for n in {1..40}; do date -d "
            "\"+$n days\" '+%u %d %F'; done | awk '$1 == 1 && $2 <= 7 && !found++ {print $3}')",
            "openstack service create --name gpuyard --description 'GPU bookings' gpu": "openstack service list -f "
            "value -c ID -c Type | awk '$2 == \"gpu\" {print $1}' | xargs openstack service delete",  # the lab has it
            "gpuyard gpu release HOLD": "HOLD=$(gpuyard gpu holds -f value -c ID -c Comment | grep 'new fan' "
            "| cut -d' ' -f1)",
            "gpuyard gpu back gpu-01 --at '2026-12-05 8:00'": "gpuyard gpu quarantine c4130/0000:84:00.0 --comment x",
        },
    ),
    "docs/how-to/run-jobs.md": OnTheLab(
        words={
            "project create ci": "project create --or-show ci",  # the lab has it
            "--user USER": "--user demo",
            "gpuyard site apply": "gpuyard site apply --yes",
            "geo-forge/maps": "demo/science",
            "YOUR-LOGIN": "ada",
            "github.com/123456": "$JOB",
        },
        before={
            "gpuyard runner show github.com/123456": "gpuyard lab job; JOB=$(gpuyard runner jobs --all -f value -c ID "
            "| head -n 1)",
        },
    ),
    "docs/how-to/watch-for-drift.md": OnTheLab(),
    "docs/how-to/watch-gpu-health.md": OnTheLab(
        words={"gpu-1/0000:27:00.0": "gpu-server/0000:27:00.0", "gpu-2 t4": "hyper18 k40c", "gpu-1": "c4130"},
        before={
            "gpuyard gpu accept --wait": "for step in quarantine 'repair start' 'repair done'; do gpuyard gpu $step "
            "hyper18/0000:86:00.0 --comment x; done",
            "gpuyard gpu health gpu-server/0000:a3:00.0": "until gpuyard gpu health gpu-server/0000:a3:00.0 -f value "
            "-c state | grep quarantined; do sleep 0.5; done",
        },
    ),
    "docs/how-to/what-can-i-start.md": OnTheLab(),
    "docs/how-to/why-no-valid-host.md": OnTheLab(),
    # The last, since GPUs that it books cannot be accepted by what other pages type.
    "docs/how-to/several-gpus.md": OnTheLab(cloud="gpuyard-lab-demo"),
}
