"""Building blocks of command lines: options, tables in five formats, questions to a person, progress."""
