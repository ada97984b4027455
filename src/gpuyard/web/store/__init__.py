"""The portal's part of the database: who is logged in, where users came from, and calendars with a secret address."""

from gpuyard.web.store.records import Feed, Session
from gpuyard.web.store.store import PortalStore

__all__ = ["Feed", "PortalStore", "Session"]
