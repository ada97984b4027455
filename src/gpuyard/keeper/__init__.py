"""The loops that keep what is wanted and what is seen together, and the driver that runs them."""
