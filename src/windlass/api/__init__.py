"""What crosses the network between hub, client, worker and receivers of webhooks: verbs, bodies, views. Durations are milliseconds."""
