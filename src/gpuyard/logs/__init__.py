"""Log lines: what each belongs to, and how it is written."""
