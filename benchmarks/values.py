"""What a value costs on its way from Arrow to Python and back, by type: `python -m benchmarks.values`.

In nanoseconds of the CPU. `to_pylist` is pyarrow's own way, `read` the one that rows take; `checked` is what looks at
a result before `written` makes Arrow of a batch of them.
"""

from __future__ import annotations

import datetime
import decimal
import gc
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from asyncudf._arrow.rows import ResultArrays, values_of
from asyncudf._arrow.validation import validator

ROWS, ROUNDS = 10_000, 7
EPOCH = datetime.datetime(1970, 1, 1)
PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])
MADE: dict[pa.DataType, Callable[[int], Any]] = {
    pa.bool_(): lambda i: i % 3 == 0,
    pa.int64(): lambda i: i << 20,
    pa.float32(): lambda i: i / 2,
    pa.float64(): lambda i: i / 7,
    pa.string(): lambda i: f"text {i}",
    pa.binary(): lambda i: b"bytes %d" % i,
    pa.date32(): lambda i: EPOCH.date() + datetime.timedelta(i),
    pa.timestamp("us"): lambda i: EPOCH + datetime.timedelta(0, i),
    pa.timestamp("us", "UTC"): lambda i: EPOCH.replace(tzinfo=datetime.UTC) + datetime.timedelta(0, i),
    pa.duration("us"): lambda i: datetime.timedelta(0, i),
    pa.decimal128(18, 2): lambda i: decimal.Decimal(i).scaleb(-2),
    pa.list_(pa.float32()): lambda i: [i / 2] * 8,
    pa.list_(pa.string()): lambda i: ["a", f"text {i}"],
    PAIR: lambda i: {"a": i, "b": f"text {i}"},
    pa.map_(pa.string(), pa.int64()): lambda i: {"a": i, "b": 1},
}


def nanoseconds(work: Callable[[], Any]) -> float:
    """For a value, in the best of the rounds."""
    took = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        took.append(time.process_time() - start)
    return min(took) / ROWS * 1e9


def main() -> None:
    gc.disable()
    print(f"pyarrow {pa.__version__}, ns a value\n{'type':32} to_pylist    read checked written")
    for arrow_type, made in MADE.items():
        values: list[Any] = [None if i % 10 == 0 else made(i) for i in range(ROWS)]
        column, check, results = pa.array(values, arrow_type), validator("f", arrow_type), ResultArrays("f", arrow_type)
        ways = (
            column.to_pylist,
            lambda column=column: values_of(column),
            lambda check=check, values=values: list(map(check, values)),
            lambda results=results, values=values: results.array(values),
        )
        own, read, checked, written = map(nanoseconds, ways)
        print(f"{arrow_type!s:32} {own:9.0f} {read:7.0f} {checked:7.0f} {written:7.0f}", flush=True)


if __name__ == "__main__":
    main()
