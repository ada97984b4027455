"""The portal's part of the database: who is logged in, and which calendars have a secret address."""

from gpuyard.portal.store.records import Feed, Session
from gpuyard.portal.store.store import PortalStore

__all__ = ["Feed", "PortalStore", "Session"]
