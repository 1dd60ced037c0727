"""Names of what goes through several processes: by them their spans are connected."""


def step_flow(incarnation: str, step_id: int) -> str:
    """A step, at the worker of one incarnation."""
    return f"step {incarnation} {step_id}"


def request_flow(request_id: str, choice: int) -> str:
    """A choice of a request."""
    return f"request {request_id} {choice}"
