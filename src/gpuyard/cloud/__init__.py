"""The only door to OpenStack: reading (few calls, counted) and carrying out steps that a planner decided."""
