"""A durable job scheduler, queue and runner."""

__version__ = "0.1.0"
