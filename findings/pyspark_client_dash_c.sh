#!/usr/bin/env bash
# pyspark-client 4.2.0, run on 2026-11-30; 4.1.2 beside it.
# Expected: a program does the same from a file, from standard input and as `python -c`, as with 4.1.2.
# Seen: with 4.2.0 `python -c` ends with status 255 at the first column or remote session, with a text that no SPARK_HOME was
#   found, which a client alone does not need. A main module without a file and a spec is taken for a run of Spark's own
#   doctests, and what these import looks for an installation of Spark. It is a SystemExit, so `except Exception` does not
#   see it.
# Matters: checks of an installation, probes of containers and steps of a workflow are often a `python -c`, and this one says
#   that PySpark is not installed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program.py" <<'PYTHON'
from pyspark.sql.functions import lit

print(lit(1))
PYTHON

# status_of VERSION WAY: how the program ends.
status_of() {
    local python="$folder/$1/bin/python" status=0
    case $2 in
        file) timeout 60 "$python" "$folder/program.py" ;;
        stdin) timeout 60 "$python" - <"$folder/program.py" ;;
        -c) timeout 60 "$python" -c "$(cat "$folder/program.py")" ;;
    esac >"$folder/out" 2>"$folder/error" || status=$?
    echo "$status"
}

seen=""
for version in 4.1.2 4.2.0; do
    timeout 300 python3 -m venv "$folder/$version"
    timeout 600 "$folder/$version/bin/pip" install --quiet --no-compile "pyspark-client==$version" pandas==2.3.3 pyarrow==22.0.0
    for way in file stdin -c; do
        status=$(cd "$folder" && status_of "$version" "$way")
        echo "pyspark-client $version, $way: status $status; $(head -c 60 "$folder/out")$(head -c 34 "$folder/error")"
        seen+="$status "
    done
done
[ "$seen" = "0 0 0 0 0 255 " ] || { echo "it has changed: $seen"; exit 1; }
