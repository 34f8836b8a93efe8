"""Draws docs/architecture.svg: `python docs/architecture.py`. A test compares the file with what this draws.

Boxes are processes and what they store; an arrow's number is the step of a publish and its acknowledgement, told below the boxes.
Colours follow the reader's scheme. The page may not: a ground of its own keeps the text readable.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final, NamedTuple

WIDTH: Final = 900
HEIGHT: Final = 764

_STYLE: Final = """
.paper { fill: #ffffff }
text { font: 13px system-ui, sans-serif; fill: #24292f }
.name { font-size: 15px; font-weight: 600 }
.small { font-size: 12px; fill: #57606a }
.step { font-size: 12px; font-weight: 600; fill: #ffffff }
.outside { fill: #f6f8fa; stroke: #8c959f }
.process { fill: #ddf4ff; stroke: #0969da }
.storage { fill: #fff8c5; stroke: #9a6700 }
.cell { fill: #ffffff; stroke: #d4a72c }
.arrow { stroke: #24292f; stroke-width: 1.5; fill: none }
.head { fill: #24292f }
.dashed { stroke: #8c959f; stroke-dasharray: 4 4 }
.disc { fill: #0550ae }
@media (prefers-color-scheme: dark) {
  .paper { fill: #0d1117 }
  text { fill: #e6edf3 }
  .small { fill: #9198a1 }
  .outside { fill: #161b22; stroke: #6e7681 }
  .process { fill: #0c2d6b; stroke: #4493f8 }
  .storage { fill: #3b2300; stroke: #d29922 }
  .cell { fill: #0d1117; stroke: #9e6a03 }
  .arrow { stroke: #e6edf3 }
  .head { fill: #e6edf3 }
  .dashed { stroke: #6e7681 }
  .disc { fill: #1f6feb }
}
"""


class Box(NamedTuple):
    """A rectangle with a name and lines of text below it."""

    kind: str
    x: int
    y: int
    width: int
    height: int
    name: str
    lines: tuple[str, ...] = ()


class Arrow(NamedTuple):
    """From one point to another, with the numbers of its steps beside it; `both`: a head at each end; `dashed`: not of a message's way."""

    x1: int
    y1: int
    x2: int
    y2: int
    steps: tuple[int, ...] = ()
    label: str = ""
    both: bool = False
    dashed: bool = False


BOXES: Final = (
    Box("outside", 200, 16, 280, 62, "publishers", ("applications by HTTP, Ray jobs",)),
    Box("outside", 560, 16, 320, 62, "clients", ("browsers, Python: WebSocket, SSE, long polling",)),
    Box("process", 200, 146, 680, 76, "edges", ("authenticate, admit, parse, frame;", "no message state beyond unsent bytes")),
    Box("process", 200, 300, 220, 92, "schedulers", ("timing wheels: delays of 10 ms", "to ten years, retry timers")),
    Box(
        "process",
        520,
        300,
        360,
        92,
        "shards",
        ("one mailbox a user: numbers, pending messages,", "windows, connections; the only writers of users' data"),
    ),
    Box("storage", 200, 470, 680, 104, "Redis", ()),
    Box("cell", 216, 504, 148, 56, "timers", ("by partition",)),
    Box("cell", 378, 504, 156, 56, "journal", ("of each shard",)),
    Box("cell", 548, 504, 190, 56, "pages, streams", ("of each user, by slot",)),
    Box("cell", 752, 504, 114, 56, "broadcasts", ("one log",)),
    Box("process", 16, 300, 148, 92, "controller", ("slot map, health,", "restarts, scaling")),
    Box("process", 16, 470, 148, 56, "archivist", ("writes the history",)),
    Box("outside", 16, 556, 148, 44, "SQL database", ()),
)

ARROWS: Final = (
    Arrow(300, 78, 300, 146, (1,), "POST"),
    Arrow(400, 146, 400, 78, (4,), "202"),
    Arrow(660, 146, 660, 78, (5,), "messages"),
    Arrow(780, 78, 780, 146, (6,), "ack"),
    Arrow(580, 222, 580, 300, (2,), "Post"),
    Arrow(672, 300, 672, 222, (4, 5), "Posted, Deliver"),
    Arrow(836, 222, 836, 300, (6,), "Ack"),
    Arrow(310, 222, 310, 300, (), "delays", both=True),
    Arrow(420, 346, 520, 346, (), "timers due", both=True),
    Arrow(600, 392, 460, 504, (3,), "append, fsync"),
    Arrow(690, 392, 650, 504, (7,), "checkpoints"),
    Arrow(290, 392, 290, 504, (), "", both=True),
    Arrow(820, 504, 820, 392, (), "", dashed=True),
    Arrow(164, 330, 200, 330, (), "", dashed=True),
    Arrow(90, 300, 200, 200, (), "", dashed=True),
    Arrow(200, 498, 164, 498, (), "", dashed=True),
    Arrow(90, 526, 90, 556, (), "", dashed=True),
)

STEPS: Final = (
    "A publisher posts messages; the edge authenticates it and validates every field.",
    "The edge sends each message over a link to the shard that owns the user's slot.",
    "The shard numbers all that arrived meanwhile, and appends it as one group: fenced, fsynced.",
    "Only then the publisher gets its 202.",
    "The shard sends the messages to the user's connections.",
    "The client acknowledges; else the message is sent again, then kept for the next connection.",
    "Checkpoints write pages and offline streams, and trim the journal.",
)


def draw() -> str:
    """The picture, an SVG document."""
    body = [part for box in BOXES for part in _box(box)] + [part for arrow in ARROWS for part in _arrow(arrow)]
    for number, step in enumerate(STEPS, 1):
        y = 606 + 20 * number
        body += [*_disc(216, y - 4, number), f'<text x="234" y="{y}">{escape(step)}</text>']
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="title">',
            '<title id="title">Processes of the engine, what each stores, and the way of a message</title>',
            f"<style>{_STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">'
            '<path class="head" d="M0,0L8,4L0,8z"/></marker></defs>',
            f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
            *body,
            "</svg>\n",
        )
    )


def _box(box: Box) -> list[str]:
    parts = [f'<rect class="{box.kind}" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6"/>']
    parts.append(f'<text class="name" x="{box.x + 12}" y="{box.y + 24}">{escape(box.name)}</text>')
    parts += [f'<text class="small" x="{box.x + 12}" y="{box.y + 44 + 18 * at}">{escape(line)}</text>' for at, line in enumerate(box.lines)]
    return parts


def _arrow(arrow: Arrow) -> list[str]:
    kind, begin = ("arrow dashed" if arrow.dashed else "arrow"), (' marker-start="url(#head)"' if arrow.both else "")
    line = f'<line class="{kind}" x1="{arrow.x1}" y1="{arrow.y1}" x2="{arrow.x2}" y2="{arrow.y2}" marker-end="url(#head)"{begin}/>'
    x, y = (arrow.x1 + arrow.x2) // 2, (arrow.y1 + arrow.y2) // 2
    parts = [line]
    for at, number in enumerate(arrow.steps):
        parts += _disc(x + 16 + 20 * at, y, number)
    if arrow.label:
        flat = arrow.y1 == arrow.y2
        left, top = (x - 32, y - 8) if flat else (x + 8 + 20 * len(arrow.steps), y + 4)
        parts.append(f'<text class="small" x="{left}" y="{top}">{escape(arrow.label)}</text>')
    return parts


def _disc(x: int, y: int, number: int) -> list[str]:
    return [
        f'<circle class="disc" cx="{x}" cy="{y}" r="9"/>',
        f'<text class="step" x="{x}" y="{y + 4}" text-anchor="middle">{number}</text>',
    ]


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(draw())
