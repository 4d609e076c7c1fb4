"""The colours of pages and plots."""

COLORS = {
    "ground": ("#f7f8fa", "#0f141b"),
    "surface": ("#ffffff", "#171d26"),
    "rule": ("#e2e8f0", "#323c4a"),
    "ink": ("#1f2937", "#e5e9f0"),
    "muted": ("#5b6878", "#9aa7b8"),
    "blue": ("#2b6cb0", "#63a4e8"),
    "orange": ("#c96a10", "#f0a04b"),
    "grey": ("#7b8694", "#8a94a3"),
    "red": ("#c53030", "#f08080"),
}
"""By name, for a light and for a dark screen."""
