"""Protocols of other systems over the same engine: each is words, verbs and a table of routes. Importing one needs no web framework."""
