"""The keys that the tests' servers know."""

READ, WRITE = "a key for looking at it", "a key for changing it too"
