"""What records, adds up and reads use."""
