"""What the `cost` functions of a function's rate limits say of the rows of a query, without calling the function."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame

from ..._arrow.rows import rows_of
from ..._calls.invokers import Costs
from ..._chain.function_plan import FunctionPlan
from ..._errors.records import error_text, is_fatal
from ..._policies.options import OnNullInput
from ..._policies.planned_calls import RowCosts
from ..._text.safe import one_line
from ..pickling import with_import_help

SUMS = pa.schema(
    {
        "permits": pa.list_(pa.float64()),
        "rows": pa.int64(),
        "failed": pa.int64(),
        "error": pa.string(),
        "ends": pa.string(),
    }
)
IN_SPARK = "permits array<double>, rows bigint, failed bigint, error string, ends string"


def costs_of(function_plan: FunctionPlan, names: Sequence[str] | None, frame: DataFrame, arguments: Column) -> RowCosts:
    """Evaluate the cost functions over the rows of a DataFrame, in one Spark job.

    Args:
        names: the names of the arguments, of a function that gets a row as a dict.
        arguments: the arguments of the function as one struct.
    """
    try:
        costs = frame.select(arguments.alias("a")).mapInArrow(_CostTask(function_plan, names), IN_SPARK)
        parts = costs.collect()
    except Exception as error:  # of many types, as in any job
        return RowCosts(left_out=f"its cost could not be evaluated ({type(error).__name__})")
    if ends := next((part.ends for part in parts if part.ends is not None), None):
        return RowCosts(left_out=f"the job would end with {one_line(ends)}")
    return RowCosts(
        tuple(map(sum, zip(*(part.permits for part in parts), strict=True))),
        sum(part.rows for part in parts),
        sum(part.failed for part in parts),
        next((part.error for part in parts if part.error is not None), None),
    )


@dataclasses.dataclass(frozen=True)
class _CostTask:
    """The worker's side, for `mapInArrow`: a row with the sums of a partition."""

    function_plan: FunctionPlan
    names: Sequence[str] | None

    def __reduce__(self) -> Any:
        return with_import_help(self)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spec, options = self.function_plan.spec, self.function_plan.options
        costs = Costs(options.rate_limit, spec)
        sums, rows, failed, said, ends = [0.0] * len(options.rate_limit), 0, 0, None, None
        for batch in batches:
            columns = batch.column(0).flatten()
            names = self.names if spec.takes_mapping else None
            for row in rows_of(spec.name, columns, names):
                values = row.values() if isinstance(row, dict) else row
                if options.on_null_input is OnNullInput.NULL and None in values:
                    continue
                try:
                    own = costs.of((row,))
                except BaseException as error:  # code of the user's
                    failed, said = failed + 1, said or error_text(error, options.redact)
                    if is_fatal(error):
                        ends = error_text(error, options.redact)
                else:
                    rows, sums = rows + 1, [a + b for a, b in zip(sums, own, strict=True)]
        yield pa.RecordBatch.from_pylist(
            [{"permits": sums, "rows": rows, "failed": failed, "error": said, "ends": ends}], schema=SUMS
        )
