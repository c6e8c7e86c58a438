"""Rows of figures as CSV and as Markdown: the one writer of tables."""

import csv
import io
from collections.abc import Sequence

from .metrics import METRICS


def as_csv(rows: Sequence[dict], columns: Sequence[str] | None = None) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns or list(rows[0]), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
    return buffer.getvalue()


def as_markdown(rows: Sequence[dict], columns: Sequence[str] | None = None) -> str:
    """One line a row; a metric's column is printed as the table of metrics says, other figures with two digits."""
    columns = columns or list(rows[0]) if rows else []
    lines = [columns, ["---"] * len(columns)] if rows else []
    lines += [[cell(name, row.get(name)) for name in columns] for row in rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def cell(column: str, value) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return METRICS[column].show(value) if column in METRICS else f"{value:.2f}"
    return str(value)
