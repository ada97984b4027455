"""Records who may have which GPU when, and makes OpenStack enforce it.

`admission.py` decides whether something can be booked, by `policy.py` and the `timetable.py`; `ledger/` changes
bookings, each in one transaction of their pool; `enforcement.py` plans the holds and limits that make them true in
OpenStack, and `controllers/` carries that out.
"""
