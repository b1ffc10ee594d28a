"""What type checkers know of the library: read by mypy and pyright, never run. A line that must be refused says `type: ignore[code]`."""
