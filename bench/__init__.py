"""What windlass costs, measured. `make bench` runs it."""
