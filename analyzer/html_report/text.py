"""Numbers as people read them."""


def grouped(count: int) -> str:
    return f"{count:,}"


def percent(share: float) -> str:
    return f"{share * 100:.2f}%"


def seconds(value: float) -> str:
    """With three digits, in a unit that fits."""
    if value == 0:
        return "0 s"
    if value < 1e-3:
        return f"{_three(value * 1e6)} µs"
    if value < 1:
        return f"{_three(value * 1e3)} ms"
    if value < 120:
        return f"{_three(value)} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s"


def milliseconds(value: float) -> str:
    return seconds(float(value) / 1e3)


def _three(value: float) -> str:
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}"
