"""What mkdocs.yml cannot say: links from pages to files of the repository outside of docs/."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"]
LINK = re.compile(r"(!?\[[^]]*\]\()((?:\.\./)+[^)#]+)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """On GitHub `../examples/a.py` is a file beside docs/; on the site it is a link to GitHub."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def absolute(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return found[0]
        return f"{found[1]}{REPOSITORY}/blob/main/{target.relative_to(ROOT)}"

    return LINK.sub(absolute, markdown)
