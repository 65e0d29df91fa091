"""Print the dependencies of a pyproject.toml without Flower's simulation engine."""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["project"]
for requirement in project["dependencies"]:
    print(re.sub(r"\[simulation\]", "", requirement))
