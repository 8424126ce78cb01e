"""Names of a package whose modules are imported when they are used (PEP 562)."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

# PySpark's modules import one another in circles, which two threads must not enter at two places. None of what is
# imported below uses a name in this way, so no thread waits in here for another.
_one_at_a_time = threading.RLock()


def on_use(
    package: str, modules: Mapping[str, Iterable[str]], needs: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package that imports a module when one of its names is used.

    Args:
        modules: for each module, the names that the package exports from it; a module without names is exported itself.
        needs: for each library, what to say if it is missing.
    """
    places = {name: (module, name) for module, names in modules.items() for name in names}
    places |= {module[1:]: (module, "") for module, names in modules.items() if not names}

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        source, defined = places[name]
        try:
            with _one_at_a_time:
                found = importlib.import_module(source, package)
        except ModuleNotFoundError as error:
            if error.name is None or error.name not in needs:
                raise
            raise ModuleNotFoundError(needs[error.name], name=error.name) from None
        value = getattr(found, defined) if defined else found
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*places, *(name for name in vars(sys.modules[package]) if name.startswith("__"))})

    return get, names
