"""Routes decode, call one verb, encode."""
