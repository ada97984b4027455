"""Writes and removes a server's metadata about the agent in its guest, which the guest and the owner read."""

from __future__ import annotations

from gpuyard.model.world import AGENT_WORD
from gpuyard.openstack.api import CloudApi, CloudError

NOT_FOUND, TOO_MANY, BUSY = 404, 403, 409


class AgentWords:
    """Writes metadata of servers of any project, as the cloud's administrator."""

    def __init__(self, api: CloudApi) -> None:
        self._api = api

    def put(self, server_id: str, text: str) -> bool:
        """Write the metadata. False when that is not possible now: the server is gone, busy, or full of metadata.
        Raises CloudError."""
        return self._try("POST", f"/servers/{server_id}/metadata", {"metadata": {AGENT_WORD: text}})

    def remove(self, server_id: str) -> bool:
        """Remove the metadata. False as in `put`, and when there is none. Raises CloudError."""
        return self._try("DELETE", f"/servers/{server_id}/metadata/{AGENT_WORD}", None)

    def _try(self, method: str, path: str, body: dict[str, dict[str, str]] | None) -> bool:
        try:
            self._api.request(method, "compute", path, body)
        except CloudError as error:
            if error.status not in (NOT_FOUND, TOO_MANY, BUSY):
                raise
            return False
        return True
