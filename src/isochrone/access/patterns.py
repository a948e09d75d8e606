"""Patterns as operators write them: `*` stands for any run of characters, all else for itself."""

import re


def glob(pattern: str) -> re.Pattern[str]:
    """Compiled, for `fullmatch`. Not a regular expression: dots and brackets are themselves."""
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)
