"""What a rank answers to a request that makes no sense."""


class Refusal(RuntimeError):
    """Told in one line: where it was raised explains nothing."""
