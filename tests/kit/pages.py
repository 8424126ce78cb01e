"""Reads an HTML page for tests: its elements, whether they are well formed, and the figures that it shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = {"meta", "link", "br", "img", "hr", "input"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    parent: Element | None
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, tag: str = "", **attributes: str) -> Iterator[Element]:
        """The elements inside that have this tag and these attributes; `data_metric` is `data-metric`."""
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        for child in self.children:
            if isinstance(child, Element):
                if tag in ("", child.tag) and all(child.attributes.get(name) == wanted[name] for name in wanted):
                    yield child
                yield from child.all(tag, **attributes)


class _Reader(HTMLParser):
    """Fails where an element is not closed, or closes another one."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = self.open = Element("", {}, None)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> at {self.getpos()} has an attribute twice: {names}"
        element = Element(tag, dict(attrs), self.open)
        self.open.children.append(element)
        if tag not in VOID:
            self.open = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.open.tag, f"</{tag}> at {self.getpos()} closes <{self.open.tag}>"
        assert self.open.parent is not None
        self.open = self.open.parent

    def handle_data(self, data: str) -> None:
        self.open.children.append(data)


def read_page(path: Path) -> Element:
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open is reader.root, f"<{reader.open.tag}> is not closed"
    return reader.root


def figures_in(page: Element, kind: str = "metric") -> dict[str, tuple[Any, set[str]]]:
    """What the page shows, by name: the exact value, and the texts that people read."""
    found: dict[str, tuple[Any, set[str]]] = {}
    for element in page.all():
        name = element.attributes.get(f"data-{kind}")
        if name is not None:
            value = json.loads(element.attributes["data-value"] or "")
            before, texts = found.setdefault(name, (value, set()))
            assert before == value, f"{name} is {before} and {value}"
            texts.add(element.text)
    return found


def value_at(metrics: Mapping[str, Any], name: str) -> Any:
    """What is under a dotted name, as JSON has it."""
    found: Any = metrics
    for part in name.split("."):
        key = part.replace("~1", ".").replace("~0", "~")
        found = found[int(key)] if isinstance(found, list) else found[key]
    return found
