#!/usr/bin/env bash
# pyarrow 26.0.1 with numpy 2.4.6, run on 2026-11-29.
# Expected: pa.array([1.5], pa.int64()) is an error, as for a numpy array with the same value, for a cast, and for the
#   integer 2**53 + 1 as a float64: a loss is refused.
# Seen: in a list, 1.5 becomes 1. A string where a list of strings is declared becomes the list of its letters, and a key
#   that a struct does not have is left out. There is no error and no warning.
# Matters: answers of services are lists of Python values. A service that changes a count to an average, a list of one
#   to its only element, or a name of a field, is found out by nobody who builds columns in this way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile pyarrow==26.0.1 numpy==2.4.6
timeout -k 10 60 "$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import pyarrow as pa


def made(make):
    try:
        return make().to_pylist()[0]
    except pa.ArrowInvalid:
        return "refused"


got = {
    "1.5 of a list as int64": made(lambda: pa.array([1.5], pa.int64())),
    "1.5 of numpy as int64": made(lambda: pa.array(np.array([1.5]), pa.int64())),
    "1.5 cast to int64": made(lambda: pa.array([1.5]).cast(pa.int64())),
    "2**53 + 1 as float64": made(lambda: pa.array([2**53 + 1], pa.float64())),
    "'new' as list<string>": made(lambda: pa.array(["new"], pa.list_(pa.string()))),
    "{'naem': 'x'} as struct<name>": made(lambda: pa.array([{"naem": "x"}], pa.struct([("name", pa.string())]))),
}
print(f"pyarrow {pa.__version__}, numpy {np.__version__}")
for what, value in got.items():
    print(f"{what}: {value!r}")
sys.exit(list(got.values()) != [1, "refused", "refused", "refused", ["n", "e", "w"], {"name": None}])
PYTHON
