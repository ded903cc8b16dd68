"""Small values of a program that live outside of its models and optimizers, such as the best accuracy so far."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from concertina import snapshot


class Values:
    """Values by name, as attributes. They are kept in snapshots, and put back when a step is made again."""

    def __init__(self) -> None:
        self.__dict__["_values"] = {}

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"no value {name!r}: name it in job.values({name}=…) first") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._values:
            raise AttributeError(f"no value {name!r}: name it in job.values({name}=…) first")
        if not snapshot.plain(value):
            raise TypeError(f"{name} is a {type(value).__name__}: values are numbers, texts and containers of them")
        self._values[name] = value

    def state_dict(self) -> dict[str, Any]:
        return self._values

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._values.update(deepcopy(dict(state)))

    def _copy(self) -> Callable[[], None]:
        """Copies them, and returns what makes them those that they are now."""
        kept = deepcopy(self._values) if self._values else {}

        def put_back() -> None:
            self._values.clear()
            self._values.update(deepcopy(kept))

        return put_back

    def _begin(self, first: Mapping[str, Any]) -> None:
        for name, value in first.items():
            self._values.setdefault(name, value)
            setattr(self, name, self._values[name])
