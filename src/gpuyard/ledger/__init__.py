"""One record of who has which GPU when. Pure: the world comes in as a Snapshot, time as an argument."""
