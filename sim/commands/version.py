"""The project's version: that of the running checkout, else of the installed distribution."""

import tomllib
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "dp-federated-simulator"


def version() -> str:
    """Such as ``0.1.0``; a checkout's file comes first, as another version may be installed."""
    path = Path(__file__).parents[2] / "pyproject.toml"
    if path.is_file():
        project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == DISTRIBUTION:
            return str(project["version"])
    return metadata.version(DISTRIBUTION)
