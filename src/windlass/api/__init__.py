"""The HTTP interface of hub, client, worker and webhook receivers: verbs, bodies, views. Durations are milliseconds."""
