"""What a package exports: it bears the name of the package, and its module is imported when it is used."""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, MappingProxyType
from typing import Any, ForwardRef, TypeVar

T = TypeVar("T")
# PySpark's modules import one another in circles, which two threads must not enter at two places. None of what is
# imported below uses a name in this way, so no thread waits in here for another.
_one_at_a_time = threading.RLock()


def public(package: str) -> Callable[[T], T]:
    """Marks a class or a function of a private module as one that `package` exports, as `publish` does."""

    def mark(one: T) -> T:
        publish(package, [one])
        return one

    return mark


def publish(package: str, public: Iterable[Any]) -> None:
    """Set `package` as the module of classes and functions.

    So tracebacks name `asyncudf.AsyncUDFError`, and what was pickled survives a move between private modules.
    """
    for one in public:
        # Not vars(one)["__annotations__"], which a class need not have since Python 3.14.
        if isinstance(one, type) and (own := inspect.get_annotations(one)):
            # They are texts, or a NamedTuple's references to texts, whose names would be looked up in the package after
            # this.
            texts = {name: getattr(hint, "__forward_arg__", hint) for name, hint in own.items()}
            one.__annotations__ = {
                name: ForwardRef(text, module=one.__module__, is_class=True) if isinstance(text, str) else text
                for name, text in texts.items()
            }
        if isinstance(one, (type, FunctionType)):
            one.__module__ = package


def on_use(
    package: str, modules: Mapping[str, Iterable[str]], needs: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package that imports a module when one of its names is used.

    Args:
        modules: the names that the package has from each of its modules; a module without names is one of them itself.
        needs: what to say where one of these libraries is not there.
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
