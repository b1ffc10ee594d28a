"""Where runs are kept: one verb, a few adapters, the same SQL for all."""
