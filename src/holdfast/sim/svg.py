"""SVG pictures as text: shapes and labels in a few named colours that suit light and dark screens.

The same input makes the same bytes. Every text is escaped.
"""

from html import escape

COLOURS = {
    "paper": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#e6edf3"),
    "faint": ("#59636e", "#9198a1"),
    "line": ("#d1d9e0", "#3d444d"),
    "fill": ("#f6f8fa", "#151b23"),
    "blue": ("#0969da", "#4493f8"),
    "green": ("#1a7f37", "#3fb950"),
    "red": ("#cf222e", "#f85149"),
    "amber": ("#9a6700", "#d29922"),
    "violet": ("#8250df", "#ab7df8"),
    "teal": ("#0b7285", "#39c5cf"),
    "grey": ("#afb8c1", "#656c76"),
}
"""By name: the colour on a light screen, and on a dark one."""
SANS = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'Noto Sans Mono', 'DejaVu Sans Mono', monospace"


def number(value: float) -> str:
    """Without unnecessary digits: 12, 12.5."""
    return f"{value:.1f}".removesuffix(".0")


class Drawing:
    def __init__(self, width: int, height: int, title: str, says: str = "") -> None:
        self.width, self.height = width, height
        self._title, self._says = title, says
        self._parts: list[str] = []
        self._defs: set[str] = set()

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str = "fill", line: str = "line",
        round: float = 6, dashed: bool = False, opacity: float = 1.0,
    ) -> None:  # fmt: skip
        style = f' class="f-{fill}{f" s-{line}" if line else ""}"'
        extra = ' stroke-dasharray="4 4"' if dashed else ""
        extra += f' opacity="{opacity:g}"' if opacity != 1.0 else ""
        self._parts.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" '
            f'rx="{number(round)}"{style}{extra}/>'
        )

    def text(
        self, x: float, y: float, words: str, colour: str = "ink", size: float = 13, anchor: str = "start",
        bold: bool = False, mono: bool = False,
    ) -> None:  # fmt: skip
        style = f"f-{colour}{' b' if bold else ''}{' m' if mono else ''}"
        self._parts.append(
            f'<text x="{number(x)}" y="{number(y)}" class="{style}" font-size="{number(size)}" '
            f'text-anchor="{anchor}">{escape(words)}</text>'
        )

    def line(
        self, points: list[tuple[float, float]], colour: str = "ink", width: float = 1.5, arrow: bool = False,
        dashed: bool = False,
    ) -> None:  # fmt: skip
        path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        extra = ' stroke-dasharray="5 4"' if dashed else ""
        if arrow:
            self._defs.add(colour)
            extra += f' marker-end="url(#to-{colour})"'
        self._parts.append(f'<polyline points="{path}" class="n s-{colour}" stroke-width="{number(width)}"{extra}/>')

    def curve(self, path: str, colour: str = "ink", width: float = 1.5, arrow: bool = False) -> None:
        """`path`: the data of an SVG path."""
        extra = ""
        if arrow:
            self._defs.add(colour)
            extra = f' marker-end="url(#to-{colour})"'
        self._parts.append(f'<path d="{path}" class="n s-{colour}" stroke-width="{number(width)}"{extra}/>')

    def dot(self, x: float, y: float, radius: float = 3, colour: str = "ink") -> None:
        self._parts.append(f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}" class="f-{colour}"/>')

    def raw(self, part: str) -> None:
        """A piece of SVG that needs no escaping."""
        self._parts.append(part)

    def svg(self, extra_style: str = "") -> str:
        title = f"<title>{escape(self._title)}</title>" + (f"<desc>{escape(self._says)}</desc>" if self._says else "")
        markers = "".join(
            f'<marker id="to-{colour}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0,0.5 L7.5,4 L0,7.5 z" class="f-{colour}"/></marker>'
            for colour in sorted(self._defs)
        )
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" font-family="{SANS}">',
            title,
            f"<style>{stylesheet()}{extra_style}</style>",
            f"<defs>{markers}</defs>" if markers else "",
            f'<rect width="{self.width}" height="{self.height}" rx="8" class="f-paper"/>',
            *self._parts,
            "</svg>",
            "",
        ]).replace("\n\n", "\n")  # fmt: skip


def stylesheet() -> str:
    light = "".join(f"--{name}:{pair[0]};" for name, pair in COLOURS.items())
    dark = "".join(f"--{name}:{pair[1]};" for name, pair in COLOURS.items())
    classes = "".join(f".f-{name}{{fill:var(--{name})}}.s-{name}{{stroke:var(--{name})}}" for name in COLOURS)
    return (
        f"svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}{classes}"
        f".n{{fill:none;stroke-linejoin:round}}.b{{font-weight:600}}.m{{font-family:{MONO}}}text{{white-space:pre}}"
    )
