"""A service that keeps credits as coral-credits does: its addresses, its checks of what it is sent, its answers.

Made from coral_credits/api/views.py, serializers.py and db_utils.py: what its serializers require is required here; a
check changes nothing, `create`, `update` and `on-end` do; a lease that it does not know is a 404.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.support.scripted_http import Asked, ScriptedAnswer, ScriptedHttp

TOKEN = "s3cret-of-the-service"  # noqa: S105
UUID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}")


@dataclass
class Credits:
    """`hours`: of each resource class of each project that are left."""

    http: ScriptedHttp
    hours: dict[tuple[str, str], float]
    leases: dict[str, dict[str, float]] = field(default_factory=dict)
    """Id -> what it takes of each class."""
    ended: list[str] = field(default_factory=list)

    def install(self, prefix: str = "/consumer") -> None:
        for path in ("check-create", "create", "check-update", "update", "on-end"):
            self.http.on("POST", f"{prefix}/{path}", self._answer)

    def _answer(self, request: Asked) -> ScriptedAnswer:
        what = request.path.rpartition("/")[2]
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return ScriptedAnswer(401, {"detail": "Invalid token."})
        body = request.json
        if wrong := _wrong(body, current=what.endswith("update")):
            return ScriptedAnswer(400, wrong)
        project, lease = body["context"]["project_id"], body["lease"]
        before: dict[str, float] = {}
        if what in ("check-update", "update", "on-end"):
            if lease["id"] not in self.leases:
                return ScriptedAnswer(404, {"detail": "Not found."})
            before = self.leases[lease["id"]]
        takes = {name: count * _hours(lease) for name, count in lease["resource_requests"].items()}
        for name, hours in takes.items():
            left = self.hours.get((project, name))
            if left is None:
                return ScriptedAnswer(
                    403, {"error": f"NoCreditAllocation('No credit allocated for resource_type {name}')"}
                )
            if left + before.get(name, 0) - hours < 0:
                message = f"Insufficient {name} credits available. Requested:{hours}, Available:{left}"
                return ScriptedAnswer(403, {"error": f"InsufficientCredits('{message}')"})
        if what in ("create", "update", "on-end"):
            for name, hours in takes.items():
                self.hours[project, name] += before.get(name, 0) - hours
            self.leases[lease["id"]] = takes
        if what == "on-end":
            self.ended.append(lease["id"])
        return ScriptedAnswer(204)


def _hours(lease: dict[str, Any]) -> float:
    start, end = (datetime.fromisoformat(lease[key]) for key in ("start_date", "end_date"))
    return (end - start).total_seconds() / 3600


def _wrong(body: Any, current: bool) -> dict[str, str]:
    """What its serializers would not take."""
    context = body.get("context", {})
    for key in ("user_id", "project_id"):
        if not UUID.fullmatch(str(context.get(key))):
            return {key: "Must be a valid UUID."}
    if not str(context.get("auth_url")).startswith("http"):
        return {"auth_url": "Enter a valid URL."}
    for lease in (body.get("lease"), *([body.get("current_lease")] if current else [])):
        if not isinstance(lease, dict) or not UUID.fullmatch(str(lease.get("id"))) or not lease.get("name"):
            return {"lease": "This field is required."}
        if _hours(lease) < 0 or not isinstance(lease.get("resource_requests"), dict):
            return {"resource_requests": "This field is required."}
        for reservation in lease["reservations"]:
            if (
                reservation["resource_type"] != "flavor:instance"
                or not isinstance(reservation["amount"], int)
                or not reservation["flavor_id"]
            ):
                return {"reservations": "Unknown resource_type"}
            if any(not (place["id"] and place["hypervisor_hostname"]) for place in reservation["allocations"]):
                return {"allocations": "This field is required."}
    return {}
