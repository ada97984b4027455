"""The portal's tables: sessions, places that users have logged in from, and calendar feeds with a secret address."""

from gpuyard.web.store.records import Feed, Session
from gpuyard.web.store.store import PortalStore

__all__ = ["Feed", "PortalStore", "Session"]
