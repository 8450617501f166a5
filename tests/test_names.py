"""Class names are unique across the packages."""

import ast
from collections import defaultdict
from pathlib import Path

import elastream

PACKAGE = Path(elastream.__file__).parent


def test_no_two_classes_of_the_package_have_the_same_name() -> None:
    found = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(file.relative_to(PACKAGE)))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}
