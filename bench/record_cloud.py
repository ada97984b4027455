"""Records what OpenStack answers to one snapshot, on a lab of its own: the shapes that bench/large_cloud.py multiplies.

python -m bench.record_cloud
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

from requests import PreparedRequest, Response, Session

from bench.lab import running_lab
from gpuyard.openstack.api import connect
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.site.load import LoadedSite
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard_lab.exercise import Exercise

RECORDING = Path(__file__).parent / "recordings" / "cloud.json"
KEPT = ("Content-Type", "OpenStack-API-Version")
ROWS = 2


def main() -> None:
    with running_lab() as (running, loaded):
        clouds = running.lab.clouds_file
        exercise = Exercise(connect(ADMIN_CLOUD, clouds), connect(DEMO_CLOUD, clouds), loaded.compiled)
        exercise.boot("k40c.2cores")
        answers = answers_to_a_snapshot(clouds, loaded)
        exercise.clear()
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
        snapshot = SnapshotTaker(api, loaded.compiled.gpus, loaded.compiled.flavors).take(datetime.now(UTC))
        provider = snapshot.providers[min(snapshot.holders)].id
        for what in ("inventories", "usages"):  # what openstack-exporter asks of every provider
            api.get("placement", f"/resource_providers/{provider}/{what}")
    return list(answers.values())


if __name__ == "__main__":
    main()
