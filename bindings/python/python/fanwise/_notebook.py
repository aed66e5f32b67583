"""How notebooks show a graph: its devices with their rows, and its text."""

from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._graph import Graph

# Sizes of the drawing in pixels.
_BOX, _HIGH, _GAP, _LEFT = 150, 46, 24, 10
# The devices that are drawn; more are counted.
_MOST = 8


def html(graph: "Graph") -> str:
    """A table of the devices, and the text of the graph to unfold."""
    rows = "".join(
        f"<tr><td>{escape(device)}</td><td>{escape(rows)}</td></tr>"
        for device, rows in graph.shards
    )
    shards = f"<table><tr><th>device</th><th>rows of N</th></tr>{rows}</table>"
    text = escape(graph.emit("graph"))
    title = f"<b>{escape(graph.name)}</b> ({escape(graph.target)})"
    return f"{title}{shards if rows else ''}<details><summary>graph</summary><pre>{text}</pre></details>"


def svg(graph: "Graph") -> str:
    """Inputs, devices with their rows, and outputs, as boxes."""
    shards = graph.shards or [("cpu:0", "N")]
    middle = [(device, f"{rows} rows") for device, rows in shards[:_MOST]]
    if len(shards) > _MOST:
        middle.append((f"… {len(shards) - _MOST} more", ""))
    columns = [list(graph.inputs.items()), middle, list(graph.outputs.items())]
    high = max(len(column) for column in columns) * (_HIGH + _GAP) + _GAP
    places = [
        [
            (_LEFT + at * (_BOX + 4 * _GAP), _top(row, len(column), high))
            for row in range(len(column))
        ]
        for at, column in enumerate(columns)
    ]
    lines = "".join(
        _line(start, end) for left, right in pairwise(places) for start in left for end in right
    )
    boxes = "".join(
        _box(place, *text)
        for column, texts in zip(places, columns)
        for place, text in zip(column, texts)
    )
    wide = 2 * _LEFT + 3 * _BOX + 8 * _GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" '
        f'font-family="sans-serif" font-size="12">{lines}{boxes}</svg>'
    )


def _top(row: int, count: int, high: int) -> float:
    return high / 2 + (row - count / 2) * (_HIGH + _GAP) + _GAP / 2


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    x, y = start[0] + _BOX, start[1] + _HIGH / 2
    return f'<line x1="{x}" y1="{y}" x2="{end[0]}" y2="{end[1] + _HIGH / 2}" stroke="#888"/>'


def _box(place: tuple[float, float], name: str, text: str) -> str:
    x, y = place
    return (
        f'<rect x="{x}" y="{y}" width="{_BOX}" height="{_HIGH}" rx="4" fill="#eef" stroke="#557"/>'
        f'<text x="{x + 8}" y="{y + 18}" font-weight="bold">{escape(name)}</text>'
        f'<text x="{x + 8}" y="{y + 36}">{escape(text)}</text>'
    )
