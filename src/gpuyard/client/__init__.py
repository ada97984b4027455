"""The client of the portal's API for command lines: requests, errors, and rows for lists."""
