"""Results to Arrow arrays, exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from .._errors.exceptions import ResultError

__all__ = ("ResultWriter",)


class ResultWriter:
    """Builds Arrow from results.

    Args:
        function: for the message of a result that Arrow refuses.
        arrow_type: the result's type.
    """

    def __init__(self, function: str, arrow_type: pa.DataType) -> None:
        self._function = function
        self._arrow_type = arrow_type

    def array(self, values: Sequence[Any]) -> pa.Array:
        """The results as one array."""
        # They were checked one by one before: what Arrow still refuses is mostly their sum.
        try:
            array = pa.array(values, type=self._arrow_type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ResultError(
                f"{self._function} returned values that do not fit {self._arrow_type}: {error}"
            ) from error
        if isinstance(array, pa.ChunkedArray):  # what pyarrow makes of more than 2 GiB of text or bytes
            raise ResultError(
                f"{self._function} returned more than 2 GiB in {len(values)} results; "
                "Arrow cannot hold them in one batch: set spark.sql.execution.arrow.maxRecordsPerBatch lower "
                "(for a column over a cached table spark.sql.inMemoryColumnarStorage.batchSize, before it is cached)"
            )
        return array
