"""The ledger: every change of a booking, hold, lease or loan, each in a transaction that has its pool to itself.

`ledger.py` is what people do, `upkeep.py` what time and the cloud do, `runner_leases.py` and `loans.py` what runners
and repairs take, `closing.py` what a host's maintenance needs. `pool_transaction.py` is the transaction: it reads the
pool, decides and writes under one lock, since two changes that were decided on the same timetable could book one GPU
twice.
"""
