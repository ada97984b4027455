"""Records what OpenStack answers to one snapshot, on a lab of its own: the shapes that bench/large_cloud.py multiplies.

python -m bench.record_cloud
"""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

from requests import PreparedRequest, Response, Session
from tests.support.ports import free_port_base
from tests.support.sites import plain_site

from gpuyard.lab import control, portal
from gpuyard.lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard.lab.exercise import Exercise
from gpuyard.lab.settings import LabSettings, remembered
from gpuyard.openstack.api import connect
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.site.load import LoadedSite, load_site

RECORDING = Path(__file__).parent / "recordings" / "cloud.json"
KEPT = ("Content-Type", "OpenStack-API-Version")
ROWS = 2


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gpuyard-record-") as folder:
        settings = LabSettings(Path(folder) / "lab", port_base=free_port_base(), site=plain_site())
        try:
            control.up(settings)
            lab = remembered(settings.state)
            assert lab is not None
            loaded = load_site(plain_site())
            portal.apply_site(lab, loaded)
            operator, user = connect(ADMIN_CLOUD, lab.clouds_file), connect(DEMO_CLOUD, lab.clouds_file)
            Exercise(operator, user, loaded.compiled).boot("k40c.2cores")
            answers = answers_to_a_snapshot(lab.clouds_file, loaded)
        finally:
            control.down(settings)
    RECORDING.write_text(json.dumps(answers, indent=1) + "\n")


def answers_to_a_snapshot(clouds_file: Path, loaded: LoadedSite) -> list[dict[str, Any]]:
    """By a new connection, so that its login and the versions that it looks for are among them. Of each list its first
    rows."""
    answers: dict[str, dict[str, Any]] = {}
    send = Session.send

    def keep(session: Session, request: PreparedRequest, **how: Any) -> Response:
        answer = send(session, request, **how)
        path = f"{request.method} {urlsplit(str(request.url)).path}"
        body = answer.json()
        for key, rows in body.items():
            if isinstance(rows, list) and len(rows) > ROWS and key != "links":
                body[key] = rows[:ROWS]
        headers = {name: answer.headers[name] for name in KEPT if name in answer.headers}
        if "X-Subject-Token" in answer.headers:  # the real one stays here
            headers["X-Subject-Token"] = "a-token"
        answers.setdefault(path, {"asked": path, "status": answer.status_code, "headers": headers, "body": body})
        return answer

    with patch.object(Session, "send", keep):
        api = connect(ADMIN_CLOUD, clouds_file)
        seen = SnapshotTaker(api, loaded.compiled.gpus, loaded.compiled.flavors).take(datetime.now(UTC))
        provider = seen.providers[min(seen.holders)].id
        for what in ("inventories", "usages"):  # what openstack-exporter asks of every provider
            api.get("placement", f"/resource_providers/{provider}/{what}")
    return list(answers.values())


if __name__ == "__main__":
    main()
