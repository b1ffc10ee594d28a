from tests.hub.recording import Scene

MORE: dict[str, tuple[Scene, list[str]]] = {}
