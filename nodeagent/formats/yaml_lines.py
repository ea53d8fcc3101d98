"""Plain values → lines of YAML, as the documents for people have it. Knows no field names."""

from typing import Any

import yaml


def yaml_lines(document: dict[str, Any]) -> list[str]:
    """Write the fields in their order; texts that YAML would read as something else are quoted."""
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=False, width=1000)
    return text.splitlines()
