"""Closes a host's nova-compute in Nova, and opens it again. Every change is read back.

The reason of the disabled service is a tag of ours (disabled_reason.py), all that is stored about it. The tag is
written before the service is forced down, so that a run after a crash knows that it was us.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gpuyard.model.errors import BlockedError, SilentCellError
from gpuyard.model.world import HostService
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.disabled_reason import ClosedTag, Purpose, tag_of
from gpuyard.openstack.rows import service_of

UNSAID = "disabled before gpuyard closed it, without a reason"
"""Reason for a service that had none: Nova takes no empty one."""


@dataclass(frozen=True)
class ComputeService:
    """The nova-compute of one host."""

    api: CloudApi
    host: str

    def look(self) -> HostService:
        """Return its state. Raises BlockedError when there is none, and SilentCellError when nothing is known of it."""
        service = service_of(self._row())
        if service.silent:
            raise SilentCellError(f"cloud {self.api.name}: {service.unheard}; try again when it answers")
        return service

    @property
    def tag(self) -> ClosedTag | None:
        return tag_of(self.look().disabled_reason)

    def close(self, purpose: Purpose, fenced: bool = False) -> ClosedTag:
        """Keep new servers away, with our tag as the reason; return the tag. A tag that is there is kept, so that a
        second run knows when the first began. Raises BlockedError where `purpose` does not go with the state of the
        host."""
        service = self.look()
        tag = None if service.enabled else tag_of(service.disabled_reason)
        self._require(service, purpose, fenced)
        if tag is not None and tag.purpose is Purpose.MAINTENANCE:
            tag = replace(tag, purpose=purpose)  # from now on whoever moves the servers opens the host again
        force = purpose is Purpose.EVACUATE and not service.forced_down
        if tag is None:
            now = self.api.date  # of the answer to look()
            if now is None:
                raise BlockedError(f"cloud {self.api.name} does not say what time it is, so nothing can be told apart")
            tag = ClosedTag(purpose, now, force, None if service.enabled else service.disabled_reason)
        elif force:
            tag = replace(tag, forced=True)
        if service.enabled or str(tag) != service.disabled_reason:
            self._write({"status": "disabled", "disabled_reason": str(tag)})
        if force:  # only once it is written down that it was us
            self._write({"forced_down": True})
        observed = self.look()
        if observed.enabled or tag_of(observed.disabled_reason) is None or (force and not observed.forced_down):
            raise BlockedError(f"nova-compute on {self.host} was closed, and is open again: somebody else is at it")
        return tag

    def close_for_maintenance(self) -> None:
        """Disable an enabled service with the tag of a maintenance. One that is disabled is left as it is: an
        operator's reason, or the tag of a drain, says who enables it again."""
        if self.look().enabled:
            self.close(Purpose.MAINTENANCE)

    def open_after_maintenance(self) -> None:
        """Enable a service that a maintenance has disabled. One that anybody else has disabled is left as it is."""
        service = self.look()
        tag = None if service.enabled else tag_of(service.disabled_reason)
        if tag is not None and tag.purpose is Purpose.MAINTENANCE:
            self.open(tag)

    def raise_up(self) -> None:
        """End `forced_down`, so that Nova trusts again what it hears of the host."""
        self._write({"forced_down": False})

    def open(self, tag: ClosedTag) -> HostService:
        """Restore the state before we closed it."""
        if tag.before is None:
            self._write({"status": "enabled"})
        else:
            self._write({"status": "disabled", "disabled_reason": tag.before or UNSAID})
        return self.look()

    def require(self, purpose: Purpose, fenced: bool = False) -> None:
        """Raise what `close` would raise; nothing is changed."""
        self._require(self.look(), purpose, fenced)

    def _require(self, service: HostService, purpose: Purpose, fenced: bool) -> None:
        if purpose is Purpose.DRAIN and not service.up:
            raise BlockedError(
                f"nova-compute on {self.host} is down, and servers leave a host only with its help. If the host is "
                f"dead: gpuyard host evacuate {self.host}"
            )
        if purpose is Purpose.EVACUATE and service.up:
            raise BlockedError(
                f"nova-compute on {self.host} is up: its servers run. gpuyard host drain {self.host} moves them; for a "
                "host that has just died, wait until Nova has noticed"
            )
        if purpose is Purpose.EVACUATE and not (fenced or service.forced_down):
            raise BlockedError(
                f"Nova has not heard of {self.host}, and that does not mean that its servers are off: two of one would "
                "write to the same volumes. Switch the machine off, and say so with --fenced"
            )

    def _row(self) -> dict[str, Any]:
        rows = self.api.get("compute", "/os-services", binary="nova-compute", host=self.host)["services"]
        if not rows:
            raise BlockedError(f"cloud {self.api.name} has no nova-compute on {self.host}")
        return dict(rows[0])

    def _write(self, values: dict[str, object]) -> None:
        self.api.request("PUT", "compute", f"/os-services/{self._row()['id']}", values)
