"""Handlers of verbs that a row alone cannot express, by the name of their row."""
