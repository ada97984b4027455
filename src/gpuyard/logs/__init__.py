"""Log lines: their format, and the request or loop run that each belongs to."""
