"""The loops and services that record use, add it up, and read it for reports."""
