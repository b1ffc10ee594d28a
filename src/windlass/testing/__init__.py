"""What tests of windlass, and tests of what is built on it, start from."""
