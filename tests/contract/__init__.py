"""What holds for a model and for the real thing: the same tests run against both."""
