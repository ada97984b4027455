"""Migrations of the tables of runners; docs/adr/0019-each-room-its-tables.md says how to write one."""
