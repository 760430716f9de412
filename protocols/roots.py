"""The root of the REST and WebSocket paths."""


def usual_root(path: str) -> str:
    """The path with `/v1.1` for `/V1.1`, which some published clients send (reference 2)."""
    return f"/v1.1{path[5:]}" if path.startswith("/V1.1") else path
