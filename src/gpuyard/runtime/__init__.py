"""Runtime of a serving process: control loops, worker threads, and HTTP and file primitives that capabilities share.

`control_loops.py` runs named loops and reports the outcome of each; a loop is level-triggered: it observes the world
again in each run, so a lost wake-up costs time and never truth.
"""
