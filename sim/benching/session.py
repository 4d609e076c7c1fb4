"""Trains the unfinished runs of recipes, and writes their tables after every run."""

import argparse
from collections.abc import Sequence

from sim.benching import lanes, queue
from sim.benching.files import Table, listed, write_page
from sim.benching.runs import Run
from sim.data import files
from sim.job.rundir import make_writable


def fill(given: argparse.Namespace) -> bool:
    """Train the unfinished runs; returns whether the command succeeds, see `sim.bench`.

    Raises:
        ValueError: a recipe is invalid, a data set or its folder is missing, or a folder cannot be
            written, in one line.
    """
    tables = [Table(path, given) for path in given.recipes]
    if len({one.stem for one in tables}) < len(tables):
        raise ValueError(
            "two recipes have the same file name, under which their runs would be kept: rename one"
        )
    of, page = {run: one for one in tables for run in one.runs}, listed(given, tables)
    for run in unfinished(list(of)):  # else each would fail, one after the other
        files.check(run.config.data.dataset, run.config.data.data_dir)
    places = {"out": given.out, "cells": given.cells, "page": given.page and given.page.parent}
    for name, folder in places.items():
        if folder is not None:  # else what was trained could not be written
            make_writable(name, folder)
    for run in of:
        run.keep()
    outstanding = queue.ordered(list(of)) if given.end is not None else unfinished(list(of))
    if outstanding:
        where = f"rounds.jsonl in the folders of {given.out} says how far they are"
        print(f"{len(outstanding)} runs to train; {where}", flush=True)
    for number, (run, fault) in enumerate(lanes.played(outstanding, given.processes, given.end), 1):
        one = of[run]
        if fault:
            one.faults[run] = fault
        run.keep()
        one.write()
        write_page(given, page)
        state = f"seed {run.seed}: {f'failed: {fault}' if fault else 'done'}"
        print(f"{number}/{len(outstanding)} {one.stem}: {run.cell.label}, {state}", flush=True)
    complete = [one.write() for one in tables]
    for one in tables:
        print(f"\n{one.file('md').read_text()}\n{one.file('md')}, .csv, .svg")
        if one.tries is not None and one.write():
            print(f"\n{one.tries.verdict(one.runs)}")
    write_page(given, page)
    failed = any(line.faults for one in tables for line in one.lines)
    return all(complete) or not (given.end is None or failed)


def unfinished(runs: Sequence[Run]) -> list[Run]:
    """The unfinished runs in order; runs in the same folder are one training."""
    return list({run.folder: run for run in runs if not run.finished}.values())
