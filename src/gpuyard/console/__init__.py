"""What command lines share: options, tables in five formats, questions to a person, progress."""
