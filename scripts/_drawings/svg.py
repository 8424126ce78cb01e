"""What the pictures share: colours in light and dark, text for those who cannot see them."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ("box", "key", "small", "svg", "title")

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600 } .small { font-size: 11px; fill: #57606a }
  .call { fill: #0d9488 } .slow { fill: #d97706 } .wait { fill: #0d9488; opacity: .25 } .left { fill: #24292f }
  .mark { stroke: #57606a; stroke-dasharray: 3 3 } .axis { stroke: #d0d7de }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9198a1 } .left { fill: #e6edf3 } .axis { stroke: #3d444d }
    .call, .wait { fill: #2dd4bf } .slow { fill: #fbbf24 } .mark { stroke: #9198a1 }
  }
"""


def title(y: float, text: str, note: str) -> list[str]:
    """The title of a panel, and a line of small text below it."""
    return [f'<text class="title" x="0" y="{y + 14:g}">{text}</text>', small(0, y + 31, note)]


def small(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    """A line of small text."""
    aligned = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="small" x="{x:g}" y="{y:g}"{aligned}>{text}</text>'


def box(kind: str, x: float, y: float, width: float, height: float, *, radius: float = 2) -> str:
    """A box in the colour of its kind."""
    rounded = f' rx="{radius:g}"' if radius else ""
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"{rounded}/>'


def key(y: float, *entries: tuple[float, str, str]) -> Iterable[str]:
    """What the colours mean: the place, the kind and the text of each."""
    for x, kind, text in entries:
        yield box(kind, x, y, 18, 10)
        yield small(x + 24, y + 9, text)


def svg(name: str, description: str, width: float, height: float, lines: Iterable[str], *, style: str = "") -> str:
    """The picture; screen readers read its name and its description."""
    size = f'width="{width + 8:g}" height="{height:g}" viewBox="-8 -4 {width + 8:g} {height:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title description">',
            f'<title id="title">{name}</title>',
            f'<desc id="description">{description}</desc>',
            f"<style>{STYLE}{style}</style>",
            *lines,
            "</svg>\n",
        ]
    )
