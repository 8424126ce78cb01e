"""How different colours look, also to those who see fewer of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

# What is left of red, green and blue light: Machado, Oliveira, Fernandes (2009), severity 1.
SIGHT = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = (0.95047, 1.0, 1.08883)

Triple = tuple[float, ...]


def closest(colours: Mapping[str, str]) -> tuple[float, tuple[str, str, str]]:
    """The two that are most alike, for whom, and their distance in CIELAB: 2.3 is just noticeable."""
    return min(
        (math.dist(_lab(colours[one], sight), _lab(colours[other], sight)), (one, other, sight))
        for one, other in itertools.combinations(colours, 2)
        for sight in SIGHT
    )


def _lab(colour: str, sight: str) -> Triple:
    light = tuple(_linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    seen = tuple(min(1.0, max(0.0, part)) for part in _product(SIGHT[sight], light))
    x, y, z = (_cube_root(part / white) for part, white in zip(_product(XYZ, seen), WHITE, strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _product(matrix: tuple[Triple, ...], vector: Triple) -> Triple:
    return tuple(sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def _cube_root(part: float) -> float:
    return part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116
