"""What runs in a serving process: control loops, worker threads, and HTTP and file primitives that capabilities share.

`control_loops.py` runs named loops and says how each went; a loop is level-triggered: it looks at the world again at
each run, so a lost wake-up costs time and never truth.
"""
