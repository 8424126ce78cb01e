#!/usr/bin/env bash
# pyarrow 26.0.1 with pandas 2.3.3, run on 2026-11-29.
# Expected: a moment that pandas can hold is kept by pyarrow, or refused: timestamp("us") reaches to the year 294246.
# Seen: pa.array makes a moment of 1972 of a pandas Timestamp of the year 12000, without an error. A Series and a numpy
#   array of the same moment keep it.
# Matters: services use far dates for "never"; row by row they become past ones, and such rows look expired.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile pandas==2.3.3 pyarrow==26.0.1
timeout -k 10 120 "$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import pandas as pd
import pyarrow as pa

SECONDS_OF_A_YEAR = 31_556_952
far = pd.Timestamp(np.datetime64("12000-01-01T00:00:00", "s"))
made = {
    "a list": pa.array([far]),
    "a Series": pa.array(pd.Series(np.array([far.to_datetime64()]))),
    "a numpy array": pa.array(np.array([far.to_datetime64()])),
}
years = {
    what: 1970 + round(array.cast(pa.timestamp("s")).cast(pa.int64())[0].as_py() / SECONDS_OF_A_YEAR)
    for what, array in made.items()
}
print(f"pyarrow {pa.__version__}, pandas {pd.__version__}: the year of {far} by way of {years}")
sys.exit(years != {"a list": 1972, "a Series": 12000, "a numpy array": 12000})
PYTHON
