"""What ``python -m sim.account`` prints: figures of a mechanism's parameters, and of a run's ledger."""

import argparse
import functools
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mechanisms.accounting import accountant, calibration
from mechanisms.accounting import ledger as ledgers
from mechanisms.accounting.events import Event, PublicLabels, TrialCap, to_dict
from mechanisms.accounting.ranges import format_ranges
from server import orders
from sim.config import caveats
from sim.pricing.mechanisms import MECHANISMS, numbers
from sim.showing import wording

Record = dict[str, Any]
Price = Callable[[int, accountant.Charges, float], accountant.Guarantee]
"""From a client, its charges and a delta to its certified figure."""

LIMITS = {PublicLabels: caveats.PUBLIC_LABELS, TrialCap: caveats.HIDDEN}


def mechanism(flags: argparse.Namespace) -> Record:
    """The figures of one mechanism; with an epsilon instead of a noise multiplier, of the smallest one that meets it.

    Raises:
        ValueError: a parameter out of bounds, or a budget too small for one step.
    """
    row, values = MECHANISMS[flags.mechanism], vars(flags)
    orders = parse_orders(flags.orders) if flags.orders is not None else None
    times, noise = values[row.count.name], row.multiplier(values)
    if noise is None:
        noise = calibration.smallest(lambda s: row.charges(values, s, times), flags.epsilon, flags.delta)
    charges = row.charges(values, noise, times)
    certified = accountant.epsilon(charges, flags.delta)
    published = accountant.epsilon(charges, flags.delta, "published") if row.claim else None
    result = {"mechanism": flags.mechanism, **{flag.name: values[flag.name] for flag in row.flags}}
    if flags.epsilon is not None:
        result |= {"epsilon_target": flags.epsilon}
    result |= {"noise_multiplier": noise, row.count.name: times, "delta": flags.delta}
    result |= row.extra(values, noise)
    result |= {"epsilon_certified": certified.epsilon, "order": certified.order}
    result |= {"epsilon_published": published and published.epsilon, "order_published": published and published.order}
    result |= {"epsilon_pld": accountant.pld_epsilon(charges, flags.delta)}
    result |= {"limits": limits(charges)}
    if orders is not None:
        result |= {"orders": orders, "rdp_certified": accountant.rdp(charges, orders, "certified").tolist()}
        result |= {"rdp_published": accountant.rdp(charges, orders, "published").tolist() if row.claim else None}
    return result


def ledger(flags: argparse.Namespace) -> Record:
    """Every client's epsilon, recomputed from a run's ledger files and its configuration alone.

    Raises:
        ValueError: the run directory, its configuration or a ledger file cannot be used.
    """
    folder = Path(flags.ledger)
    if not folder.is_dir():
        raise ValueError(f"--ledger = {folder} must be an existing run directory; give the folder a run printed")
    path = folder / "config.toml"
    config = read_config(path)
    delta = flags.ledger_delta if flags.ledger_delta is not None else setting(config, "privacy", "delta", float)
    if delta is None:
        raise ValueError(f"delta is not in [privacy] of {path}, but must be in (0, 1); give --delta")
    accountant.check_delta(delta)
    private = setting(config, "privacy", "mechanism", str) != "none"
    finished = (folder / "summary.json").is_file()
    spent = ledgers.read(folder / "ledger") if private or (folder / "ledger").exists() else {}
    everybody = sorted(set(spent) | set(range(setting(config, "data", "clients", int) or 0)))
    price, note = _least, ""
    if private and not finished:
        price, note = _unfinished(folder, config, delta, spent)
    clients = [_client(client, spent.get(client, {}), delta, private, price) for client in everybody]
    released = {event for charges in spent.values() for event in charges}
    return {"finished": finished, "note": note, "clients": clients, "limits": limits(released)}


def _least(client: int, charges: accountant.Charges, delta: float) -> accountant.Guarantee:
    """The smallest certified figure over all orders."""
    return accountant.epsilon(charges, delta)


def _unfinished(
    folder: Path, config: Record, delta: float, spent: Mapping[int, accountant.Charges]
) -> tuple[Price, str]:
    """How the clients of a run that is not finished are priced, by what holds whatever made it end; and a note."""
    order_of = orders.read(folder)
    if order_of:
        return functools.partial(_at_its_order, order_of), wording.AT_ONE_ORDER
    target = setting(config, "privacy", "epsilon", float, int, str)
    own = setting(config, "privacy", "delta", float), setting(config, "privacy", "budget", str)
    kept = not isinstance(target, str | None) and own == (delta, "certified")
    if not kept or any(_least(client, charges, delta).epsilon > target for client, charges in spent.items()):
        return _least, wording.AT_THE_BEST_ORDER
    budget = accountant.Guarantee(float(target), None)
    return lambda client, charges, _: budget if charges else _least(client, charges, delta), wording.AT_THE_BUDGET


def _at_its_order(
    order_of: Mapping[int, float], client: int, charges: accountant.Charges, delta: float
) -> accountant.Guarantee:
    """The certified figure at the order that was fixed for a client before the run began."""
    if client not in order_of:
        raise ValueError(f"client {client} has no Renyi order in {orders.FILE}: restore the file")
    return accountant.epsilon(charges, delta, orders=(order_of[client],))


def limits(released: Iterable[Event]) -> list[str]:
    """What the figures do not cover, or take for granted, a sentence each, as the events say."""
    kinds = {type(event) for event in released}
    return [text for kind, text in LIMITS.items() if kind in kinds]


def _client(client: int, charges: accountant.Charges, delta: float, private: bool, price: Price) -> Record:
    certified = price(client, charges, delta) if private else accountant.Guarantee(math.inf, None)
    published = accountant.epsilon(charges, delta, "published").epsilon if private else math.inf
    events: list[tuple[Event, int]] = sorted(charges.items(), key=repr)
    return {
        "client": client,
        "epsilon_certified": certified.epsilon,
        "order": certified.order,
        "epsilon_published": published,
        "delta": delta,
        "events": [{**to_dict(event), "count": int(count)} for event, count in events],
    }


def read_config(path: Path) -> Record:
    """A run's configuration; empty when the file is absent.

    Raises:
        ValueError: the file is no TOML.
    """
    if not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be TOML ({error}); restore it or give --delta without it") from error


def setting(config: Record, table: str, key: str, *kinds: type) -> Any:
    """One value of a configuration, of one of the kinds; None when its table or key is absent.

    Raises:
        ValueError: the value is of another type.
    """
    content = config.get(table, {})
    value = content.get(key) if isinstance(content, dict) else content
    if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"[{table}] {key} = {value!r} in config.toml must be a {names}; restore the file")
    return value


def parse_orders(text: str) -> list[float]:
    """The orders of ``2,4,8.5``; ValueError unless each is a number above 1."""
    try:
        orders = numbers(text)
    except ValueError as error:
        raise ValueError(f"--orders = {text!r} must be numbers above 1 with commas between; write 2,4,8.5") from error
    if not all(1.0 < order < math.inf for order in orders):
        raise ValueError(f"--orders = {text!r} must all be finite and above 1; write 2,4,8.5")
    return orders


def finite(value: Any) -> Any:
    """The same structure with infinite and undefined numbers as None, for JSON."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show(result: Record) -> None:
    """Print the figures as a table; clients with equal figures share a line."""
    from rich.console import Console
    from rich.table import Table

    table = Table("clients", "epsilon (certified)", "epsilon (published)", "delta")
    if "clients" in result:
        groups: dict[tuple[str, ...], list[int]] = {}
        for row in result["clients"]:
            texts = tuple(_text(name, row[name]) for name in ("epsilon_certified", "epsilon_published", "delta"))
            groups.setdefault(texts, []).append(row["client"])
        for texts, clients in groups.items():
            table.add_row(format_ranges(clients), *texts)
    else:
        table = Table("quantity", "value")
        for name, value in result.items():
            if name != "limits":
                table.add_row(name.replace("_", " "), _text(name, value))
    Console().print(table)
    for text in result["limits"]:
        Console().print(text, style="yellow", soft_wrap=True)
    if result.get("note"):
        Console().print(result["note"], style="yellow", soft_wrap=True)


def _text(name: str, value: Any) -> str:
    """A figure in six digits; an epsilon is rounded up, so that what is shown is a guarantee too."""
    if isinstance(value, list):
        return ", ".join(_text(name, one) for one in value)
    if isinstance(value, float):
        return wording.epsilon(value, digits=6) if name.startswith("epsilon") else f"{value:.6g}"
    return "-" if value is None else str(value)
