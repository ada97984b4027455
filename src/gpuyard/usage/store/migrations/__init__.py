"""The steps of the tables of health; docs/adr/0019-each-room-its-tables.md says how to write one."""
