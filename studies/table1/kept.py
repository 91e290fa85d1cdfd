"""Rows of Table 1 that are kept from earlier runs: a table of hours is not computed again for every new row."""

from collections.abc import Mapping

from studies.framework import Record, Records

FLOORS = ("floor", "independent_floor")


def carried_over(new: Records, kept: Records) -> Records:
    """Return new records, with those kept ones that were not computed again.

    The row of a dataset is replaced as a whole, where all of its seeds are there: no mean is over two versions of the
    code. Floors depend on the samples alone, and a new row may have those of a kept one.

    Args:
        new: What `cells.summary` made of a run.
        kept: The same of earlier runs.
    """
    before, now = (seeds_by_row(records) for records in (kept, new))
    unfinished = {row for row, seeds in now.items() if not seeds >= before.get(row, set())}
    kinds = {}
    for kind, records in new.kinds.items():
        counted = [record for record in records if row_of(record) not in unfinished]
        replaced = {place(record) for record in counted}
        others = [
            r for r in kept.kinds.get(kind, []) if row_of(r) not in now.keys() - unfinished and place(r) not in replaced
        ]
        kinds[kind] = others + counted
    floors = {floor_place(record): record for record in kept.kinds["records"]}
    kinds["records"] = [with_floors(record, floors) for record in kinds["records"]]
    return Records(new.settings, kinds)


def row_of(record: Record) -> tuple[str, str] | None:
    """Return the row of the table that a record belongs to, None for what belongs to all."""
    return (record["dataset"], record["method"]) if "method" in record else None


def seeds_by_row(records: Records) -> dict[tuple[str, str], set[int]]:
    """Return the seeds of every row of a dataset."""
    found: dict[tuple[str, str], set[int]] = {}
    for record in records.kinds["rows"]:
        found.setdefault((record["dataset"], record["method"]), set()).add(record["seed"])
    return found


def place(record: Record) -> tuple[object, ...]:
    """Return where a record stands: in its kind, no two have the same."""
    return tuple(record.get(axis) for axis in ("dataset", "method", "seed", "metric", "number"))


def floor_place(record: Record) -> tuple[str, int, str]:
    """Return what a floor depends on."""
    return record["dataset"], record["seed"], record["metric"]


def with_floors(record: Record, kept: Mapping[tuple[str, int, str], Record]) -> Record:
    """Return a record, with the kept floors where it has none of its own."""
    if record["floor"] is not None or floor_place(record) not in kept:
        return record
    other = kept[floor_place(record)]
    return record | {key: other[key] for key in FLOORS if key in other}
