"""What every client of a run has paid, from the ledger files and the configuration alone."""

import math
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mechanisms import personal
from mechanisms.accounting import accountant, group
from mechanisms.accounting.events import Event, to_dict
from server import closing, orders
from server import paid as paid_in
from server.guarantees import guarantees
from server.store import Store
from sim.config.caveats import PERSONAL, caveats_of
from sim.showing import wording

Entries = dict[str, Any]
Price = Callable[[int, accountant.Charges, float], accountant.Guarantee]
"""Maps a client, its charges and a delta to its certified epsilon."""


def spent(
    folder: Path, delta: float | None, records: int | None = None, flag: str = "--ledger"
) -> Entries:
    """Every client's epsilon at ``delta``, or at the run's own; and that of a person who has
    ``records`` records with it. ``flag`` has given the folder.

    Raises:
        ValueError: the run directory, its configuration or a ledger file cannot be used, or a run
            that is not finished is asked for a group.
    """
    _check_directory(folder, flag)
    paid = paid_in.read(folder)
    store = Store(folder, 2)
    store.check_rounds()
    if not (finished := closing.read(folder) is not None):
        store.check_unfinished()
    path = folder / "config.toml"
    config = read_config(path)
    private = setting(config, "privacy", "mechanism", str) != "none"
    trust = setting(config, "privacy", "trust", str) or "local"
    unit = setting(config, "privacy", "unit", str) or "record"
    delta = setting(config, "privacy", "delta", float) if delta is None else delta
    if delta is None:
        raise ValueError(
            f"delta is not in [privacy] of {path}, but must be in (0, 1); give --delta"
        )
    accountant.check_delta(delta)
    everybody = sorted(set(paid) | set(range(setting(config, "data", "clients", int) or 0)))
    targets = _targets(config, len(everybody)) if private else {}
    price: Price = _least
    note = ""
    if records is not None:
        _check_group(folder, records, finished, unit)
    if private and not finished:
        price, note = _unfinished(folder, config, delta, paid, targets)
    clients = [_client(client, paid.get(client, {}), delta, private, price) for client in everybody]
    if records is not None:
        for row in clients:
            row |= _of_group(paid.get(row["client"], {}), delta, records, private)
    said = list(caveats_of(event for charges in paid.values() for event in charges))
    if private and setting(config, "privacy", "budgets", str):
        said.append(PERSONAL)
        for row in clients:
            row["budget"] = targets[row["client"]]
    largest = max((row["epsilon_certified"] for row in clients), default=0.0)
    return {
        "finished": finished,
        "note": note,
        "clients": clients,
        "caveats": said,
        "guarantees": list(guarantees(trust, unit, len(clients), largest)),
    }


def _check_directory(folder: Path, flag: str) -> None:
    if not folder.is_dir():
        raise ValueError(
            f"{flag} = {folder} must be an existing run directory; give the folder a run printed"
        )
    if not (folder / "config.toml").exists() and not (folder / "ledger").is_dir():
        inside = sorted(one.parent.name for one in folder.glob("*/config.toml"))
        hint = f", such as {folder / inside[-1]}" if inside else ""
        raise ValueError(
            f"{flag} = {folder} is no run directory, it has neither config.toml nor ledger: give "
            f"the directory of a run{hint}"
        )


def _check_group(folder: Path, records: int, finished: bool, unit: str) -> None:
    group.check_records(records)
    if not finished:
        raise ValueError(
            f"--group {records} needs a finished run, as its proof is for an end fixed beforehand: "
            f"resume {folder}, or drop --group"
        )
    if unit == "client":
        raise ValueError(
            f"--group {records} counts records of one person, but {folder} protects each client "
            "with all of its records: drop --group"
        )


def _of_group(charges: accountant.Charges, delta: float, records: int, private: bool) -> Entries:
    """The epsilon for this many records of one person, and what proves it."""
    one = group.epsilon(charges, delta, records) if private else group.Guarantee(math.inf, "")
    return {"group": records, "epsilon_group": one.epsilon, "group_method": one.method}


def _least(client: int, charges: accountant.Charges, delta: float) -> accountant.Guarantee:
    """The smallest certified epsilon, for an end fixed in advance."""
    return accountant.epsilon(charges, delta)


def _unfinished(
    folder: Path,
    config: Entries,
    delta: float,
    spent: Mapping[int, accountant.Charges],
    targets: Mapping[int, float],
) -> tuple[Price, str]:
    """How to price the clients of an unfinished run, valid for any stopping rule: at the orders
    that were fixed for each before it began, or by its budget; and a note."""
    order_of = orders.written(folder) if spent else orders.read(folder)
    own = setting(config, "privacy", "delta", float), setting(config, "privacy", "budget", str)
    budgets = targets if own == (delta, "certified") else {}

    def price(client: int, charges: accountant.Charges, delta: float) -> accountant.Guarantee:
        if not charges:
            return accountant.Guarantee(0.0, None)
        if client not in order_of:
            raise ValueError(
                f"client {client} has no Renyi order in {orders.FILE}: restore the file"
            )
        return orders.running(charges, delta, order_of[client], budgets.get(client, math.inf))

    return price, wording.AT_ONE_ORDER


def _targets(config: Entries, clients: int) -> dict[int, float]:
    """The budget of each client that has one."""
    if budgets := setting(config, "privacy", "budgets", str):
        found = personal.groups(budgets, clients)
        return {client: one.epsilon for one in found for client in one.clients.tolist()}
    target = setting(config, "privacy", "epsilon", float, int, str)
    return {} if isinstance(target, str | None) else dict.fromkeys(range(clients), float(target))


def _client(
    client: int, charges: accountant.Charges, delta: float, private: bool, price: Price
) -> Entries:
    certified = price(client, charges, delta) if private else accountant.Guarantee(math.inf, None)
    published = accountant.epsilon(charges, delta, "published").epsilon if private else math.inf
    proof = accountant.epsilon(charges, delta) if certified.order is None else certified
    events: list[tuple[Event, int]] = sorted(charges.items(), key=repr)
    return {
        "client": client,
        "epsilon_certified": certified.epsilon,
        "method": proof.method,
        "order": certified.order,
        "epsilon_published": published,
        "delta": delta,
        "events": [{**to_dict(event), "count": int(count)} for event, count in events],
    }


def read_config(path: Path) -> Entries:
    """A run's configuration.

    Raises:
        ValueError: the file is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} must be TOML ({error}); restore it") from error


def setting(config: Entries, table: str, key: str, *kinds: type) -> Any:
    """A value of a configuration, of one of these types; None if its table or key is missing.

    Raises:
        ValueError: the value has another type.
    """
    content = config.get(table, {})
    value = content.get(key) if isinstance(content, dict) else content
    if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(
            f"[{table}] {key} = {value!r} in config.toml must be a {names}; restore the file"
        )
    return value
