"""The database that all capabilities share: engine, transactions, leader election, migrations, backups.

Each capability brings its own tables and migrations as a `SchemaModule`; this package knows none of them.
"""
