"""The loops of health, and the services through which observations and operators' requests come in."""
