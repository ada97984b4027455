"""The steps of the portal's tables; docs/adr/0019-each-room-its-tables.md says how to write one."""
