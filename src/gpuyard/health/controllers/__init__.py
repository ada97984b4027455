"""The control loops of health, and the services that take observations and operators' requests."""
