"""What mkdocs.yml cannot say: links to files outside of docs/, and in docstrings examples and the list of figures."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import griffe

from asyncudf._observe.function_metrics import described

ROOT = Path(__file__).parents[1]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"]
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)
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


def on_post_page(output: str, **_: Any) -> str:
    """The theme gives its search no name, which screen readers need."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


class Examples(griffe.Extension):
    """Examples in docstrings are code: `>>>` would begin a quotation. Numbers are listed as at run time."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", described(obj.docstring.value))
