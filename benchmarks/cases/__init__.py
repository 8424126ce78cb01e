"""All cases, in the order in which they run and are shown."""

from .._harness import Case
from .budgets import P26
from .calls import P3, P3B, P3C
from .chain import CHAIN
from .engine import P9, P23
from .engines import P30
from .http import P5, P5B, SLOW, TLS
from .instant import P2, P6, P22
from .jobs import EXECUTORS, JOB
from .memory import HELD, P7, P24, WAITING
from .naive import NAIVE
from .sinks import P25
from .stores import P13
from .tenants import P31
from .workers import P27, P28, P29

__all__ = ("CASES",)

CASES: tuple[Case, ...] = (
    *(NAIVE, P3, P3B, P3C, P5, P5B, SLOW, TLS, P2, P6, P22, JOB, EXECUTORS, P30),
    *(CHAIN, P25, P26, P31, P13, P7, WAITING, HELD, P24, P9, P23, P27, P28, P29),
)
