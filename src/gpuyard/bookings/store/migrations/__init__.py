"""The steps of the ledger's tables; docs/adr/0019-each-room-its-tables.md says how to write one."""
