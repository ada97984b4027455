"""Control loops of runners, and the services that act for them on GitHub and OpenStack."""
