"""Runners: servers with GPUs that run one GitHub job each and are deleted.

1. A job comes in by a scale set's long poll, by a webhook, or by the search for lost ones
   (`controllers/set_listener.py`, `runner_intake.py`, `runner_recovery.py`); `jobs.py` merges what they report in any
   order.
2. `resolve.py` decides what it may have, by the site, the repository's files and who started it.
3. `planner.py` decides which job is next, which GPU is free for long enough, and why the others wait.
4. The ledger gives a lease, the runner is stored, then `controllers/runner_executor.py` registers it at GitHub and
   creates its server: in an order in which a crash between any two steps loses nothing.
5. The server reports its state on its console (`console.py`); `progress.py` derives the runner's next state from that,
   Nova and GitHub.
6. When its job is over, its registration and server go, and the lease ends when Nova has the server no more.
"""
