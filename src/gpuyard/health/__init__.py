"""GPU health: signals, verdicts, and the life of a GPU between its tenants.

1. Hosts, agents in guests, runners and people report observations of the signals in `model/signals.py`. They come in
   at `controllers/health_service.py` and are stored before anybody is answered. The health loop itself observes the
   signals of Nova and Placement (`cloud_signals.py`).
2. `planner.py` decides what follows: noted, suspect for a time that grows, quarantined, or a question to a person.
   `verdicts.py` applies the rules of the site file, `baseline.py` compares with the facts that a GPU was accepted with.
3. The new state is stored with a line of the GPU's record. The booking loop reads there which GPUs nobody may get,
   moves bookings off them and holds them in Placement.
4. When an acceptance is asked for, as after a repair, `controllers/acceptance.py` lends the GPU to a server of
   gpuyard's own, which tests it.
"""
