"""All cases, in the order in which they run and are shown."""

from .._harness import Case
from .capacity import CAPACITY_GROWTH
from .chain import CHAIN
from .copies import COPIES
from .http_bodies import JSON, SOCKETS, TASKS
from .mixes import P3B, P3C
from .options import OPTIONS
from .p1_engine import P1
from .p2_column import P2, P2B
from .p3_p4_latency import P3, P4
from .p5_http import P5, P5B
from .p6_pass_through import P6
from .p7_p8_growth import P7, P8
from .p9_suspended import P9
from .p11_p12_stopping import P11, P12
from .p13_p14_stores import P13, P14
from .p15_p17_limits import P15, P17
from .p16_metrics import P16
from .p18_refusals import P18
from .p19_p21_limits_at_any_size import P19, P21
from .payload import HELD, PAYLOAD

__all__ = ("CASES",)

CASES: tuple[Case, ...] = (
    P1,
    P2,
    P2B,
    P3,
    P3B,
    P3C,
    P4,
    P5,
    P5B,
    P6,
    P7,
    P8,
    P9,
    P11,
    P12,
    P13,
    P14,
    P15,
    P16,
    P17,
    P18,
    P19,
    P21,
    OPTIONS,
    JSON,
    SOCKETS,
    TASKS,
    CAPACITY_GROWTH,
    PAYLOAD,
    HELD,
    CHAIN,
    COPIES,
)
