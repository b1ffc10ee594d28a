"""Handlers of the verbs that a row alone cannot say, by the name of their row."""
