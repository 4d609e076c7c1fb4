"""Draws that a second core makes while the first one computes what they will be added to.

The values are those of draws made when they are asked for: a purpose's draws are made in the order
in which they are begun or asked for, by whichever thread.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

from torch import Tensor

Draw = Callable[[str, int], Tensor]
"""From a purpose and a size to draws ``[K, size]``."""

MIN_DRAWS = 2**16
"""Fewer draws, of all clients together, take less time than another thread needs to begin."""


@cache
def _beside() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="draws")


class Ahead:
    """The draws of K clients that have begun and were not asked for yet, at most one a purpose."""

    def __init__(self, clients: int):
        self._clients = clients
        self._begun: dict[str, tuple[Draw, int, Future[Tensor]]] = {}

    def begin(self, draw: Draw, purpose: str, size: int) -> None:
        """Start what the next :meth:`take` with the same arguments returns."""
        if self._clients * size >= MIN_DRAWS and purpose not in self._begun:
            self._begun[purpose] = draw, size, _beside().submit(draw, purpose, size)

    def take(self, draw: Draw, purpose: str, size: int) -> Tensor:
        """``draw(purpose, size)``, now or as begun.

        Raises:
            ValueError: other draws of this purpose have begun.
        """
        if purpose not in self._begun:
            return draw(purpose, size)
        *begun, future = self._begun.pop(purpose)
        if begun != [draw, size]:
            raise ValueError(
                f"{size} draws for '{purpose}' were asked for, but {begun[1]} have begun: ask for "
                "what was begun"
            )
        return future.result()
