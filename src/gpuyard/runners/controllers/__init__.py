"""The loops of runners, and what acts for them on GitHub and OpenStack."""
