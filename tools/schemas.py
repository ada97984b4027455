"""Writes what docs/reference generates from code: the JSON Schema of site.yaml."""

from __future__ import annotations

import json
from pathlib import Path

from gpuyard.site.schema import json_schema

REFERENCE = Path(__file__).parents[1] / "docs/reference"

if __name__ == "__main__":
    REFERENCE.mkdir(parents=True, exist_ok=True)
    (REFERENCE / "site.schema.json").write_text(json.dumps(json_schema(), indent=2) + "\n", encoding="utf-8")
