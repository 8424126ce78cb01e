"""`ship`: sends this library and the user's modules to executors that lack them."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from asyncudf.queues._public import public

from .._errors.exceptions import AsyncUDFError, OptionError
from .._errors.safe import safe_repr
from .._observe.doctor import PACKAGE, fits, required
from ._compat import engine_of, slots_of

OURS = (PACKAGE, f"{PACKAGE}.queues")  # an editable installation has them in two folders
_ENVIRONMENT = "bring it with an environment: --archives environment.tar.gz#environment, or install it there"


@public("asyncudf")
def ship(spark: SparkSession, *modules: str | ModuleType) -> None:
    """Send asyncudf, and modules of yours, to executors that do not have them installed; then check what they lack.

    The modules travel as one zip: with `addPyFile` in a classic session, with `addArtifacts` over Spark Connect. From
    then on the executors prefer them to what they have installed, for all queries of the session. A small job then
    checks which Python the executors run, and whether they have what asyncudf needs. Over Spark Connect Spark does not
    give the modules to streaming queries: for those, install them on the server and the executors. Sail takes no
    modules, and runs functions in the Python of its server: there only the check is made, of the modules too.

    Args:
        modules: modules or packages, or their names, that can be imported here. Pure Python only: compiled parts fit
            one kind of machine, and need an environment.

    Raises:
        OptionError: a module cannot be found, or cannot be put into a zip.
        AsyncUDFError: Spark does not take the zip, or the executors lack something; the message says what.

    Example:
        >>> asyncudf.ship(spark, "tenacity", "my_clients")  # doctest: +SKIP
    """
    names = [module.__name__ if isinstance(module, ModuleType) else module for module in modules]
    if not (engine := engine_of(spark)).takes_modules:
        way_out = f"{engine.name} takes no modules from a client: install them in the Python that runs its server"
        _check_executors(spark, [], [PACKAGE, *names], way_out)
        return
    content = _zipped([*OURS, *names])
    try:
        _add(spark, f"{PACKAGE}_{hashlib.sha256(content).hexdigest()[:16]}.zip", content)  # Spark takes a name once
    except Exception as error:
        raise AsyncUDFError(
            f"this Spark session does not take modules ({type(error).__name__}: {error}); {_ENVIRONMENT}"
        ) from error
    way_out = f"Modules of pure Python go with ship(spark, 'tenacity'); of others, {_ENVIRONMENT}"
    _check_executors(spark, names, [PACKAGE], way_out)


def _add(spark: SparkSession, name: str, content: bytes) -> None:
    if hasattr(spark, "_jsparkSession"):
        from pyspark import SparkFiles  # a client of Spark Connect alone has none

        # Executors fetch the file from here as long as the application runs. Spark deletes the folder when it ends.
        path = Path(SparkFiles.getRootDirectory(), name)
        if not path.exists():
            path.write_bytes(content)
        spark.sparkContext.addPyFile(str(path))
        return
    with tempfile.TemporaryDirectory(prefix="asyncudf-") as folder:  # the call copies the file to the server
        path = Path(folder, name)
        path.write_bytes(content)
        spark.addArtifacts(str(path), pyfile=True)


def _zipped(names: Sequence[str]) -> bytes:
    files = {inside: path for name in names for inside, path in _files_of(name)}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for inside, path in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(inside), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _files_of(name: str) -> Iterator[tuple[str, Path]]:
    """The files of a module or package: the path in the zip, and the path here."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, TypeError, ValueError):  # the parent is no package, or this is not a name
        spec = None
    if spec is None:
        raise OptionError(f"ship takes modules that can be imported here, and {safe_repr(name)} cannot")
    inside = name.replace(".", "/")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    found = [
        (f"{inside}/{path.relative_to(folder).as_posix()}", path) for folder in folders for path in _files_in(folder)
    ]
    if not folders and spec.has_location and spec.origin is not None:
        # By the name of the module: Airflow imports the file of a DAG under another name.
        found = [(inside + Path(spec.origin).suffix, Path(spec.origin))]
    compiled = [path.name for _, path in found if path.name.endswith(tuple(EXTENSION_SUFFIXES))]
    if compiled or not found or not all(path.is_file() for _, path in found):
        why = f"has compiled parts ({compiled[0]})" if compiled else "is not made of files"
        raise OptionError(f"module {name!r} {why} and cannot be shipped; {_ENVIRONMENT}")
    yield from found


def _files_in(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """The files in a folder, as an import finds them: behind symbolic links too, but not around in a circle."""
    above = *above, folder.resolve()
    for path in folder.iterdir():
        if path.is_file():
            yield path
        elif path.is_dir() and path.name != "__pycache__" and path.resolve() not in above:
            yield from _files_in(path, above)


def _check_executors(spark: SparkSession, shipped: Sequence[str], modules: Sequence[str], way_out: str) -> None:
    """Raises AsyncUDFError if a worker lacks what asyncudf needs, or cannot import one of the modules."""
    needed = [one for one in required() if one.name not in shipped]
    look = sf.udf(_probe([one.name for one in needed], modules), "string", useArrow=False)
    tasks = slots_of(spark) or 2
    try:
        told = spark.range(0, tasks, 1, tasks).select(look("id").alias("seen")).distinct().collect()
    except Exception as error:
        # Spark's message says that Python has another minor version there, or cannot be started.
        raise AsyncUDFError(f"the executors cannot run Python for this session: {error}") from error
    for seen in (json.loads(row.seen) for row in told):
        lacks = [
            f"{one} ({f'it has {has}' if has else 'not installed'})"
            for one in needed
            if not fits(has := seen["versions"][one.name], one)
        ]
        lacks += [f"{module} cannot be imported: {error}" for module, error in seen["errors"].items()]
        if lacks:
            raise AsyncUDFError(
                f"on {seen['host']} Spark's workers run {seen['python']}, which lacks {', '.join(lacks)}. {way_out}"
            )


def _probe(packages: Sequence[str], modules: Sequence[str]) -> Any:
    def look(number: int) -> str:
        import contextlib
        import importlib
        import importlib.metadata
        import json
        import socket
        import sys

        versions = dict.fromkeys(packages, "")
        for package in packages:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[package] = importlib.metadata.version(package)
        errors = {}
        for module in modules:
            try:
                importlib.import_module(module)
            except Exception as why:
                errors[module] = f"{type(why).__name__}: {why}"
        host = socket.gethostname()
        return json.dumps({"host": host, "python": sys.executable, "versions": versions, "errors": errors})

    look.__module__ = "__main__"  # so it travels by value: an executor may not have this module
    return look
