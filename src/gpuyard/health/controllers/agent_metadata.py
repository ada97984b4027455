"""What stands in a server's metadata about the agent in its guest: a word that the guest reads, and its owner."""

from __future__ import annotations

from gpuyard.model.world import AGENT_WORD
from gpuyard.openstack.api import CloudApi, CloudError

NOT_FOUND, TOO_MANY, BUSY = 404, 403, 409


class AgentWords:
    """Acts on servers of any project, as the cloud's administrator."""

    def __init__(self, api: CloudApi) -> None:
        self._api = api

    def put(self, server_id: str, text: str) -> bool:
        """False when that is not possible now: the server is gone, at work, or full of metadata. Raises CloudError."""
        return self._try("POST", f"/servers/{server_id}/metadata", {"metadata": {AGENT_WORD: text}})

    def remove(self, server_id: str) -> bool:
        """False as in `put`, and when there is none. Raises CloudError."""
        return self._try("DELETE", f"/servers/{server_id}/metadata/{AGENT_WORD}", None)

    def _try(self, method: str, path: str, body: dict[str, dict[str, str]] | None) -> bool:
        try:
            self._api.request(method, "compute", path, body)
        except CloudError as error:
            if error.status not in (NOT_FOUND, TOO_MANY, BUSY):
                raise
            return False
        return True
