"""Reads a page as a checker does: its elements, what it would load, its headings, and its colours."""

import re
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr", "circle", "rect", "line", "path"}


class Page(HTMLParser):
    """The elements of a page in order, as (name, attributes, text), and whether every one is closed."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self._open, self.wrong = [], [], []
        self.feed(page)
        self.wrong += [f"{element[0]} is not closed" for element in self._open]

    def handle_starttag(self, tag, attrs):
        element = [tag, dict(attrs), ""]
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append([tag, dict(attrs), ""])

    def handle_endtag(self, tag):
        if not self._open or self._open[-1][0] != tag:
            self.wrong.append(f"{tag} is closed where it is not the last open one")
            return
        self._open.pop()

    def handle_data(self, data):
        for element in self._open:
            element[2] += data

    def all(self, *names):
        return [element for element in self.elements if element[0] in names]


def schemes(page):
    """The colours of each scheme by name, as a page's style has them."""
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    light = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6})", style.split("@media")[0]))
    dark = light | dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6})", style.split("@media")[1]))
    printed = light | dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6})", style.split("@media print")[1]))
    return {"light": light, "dark": dark, "print": printed}


def contrast(one, other):
    """The contrast of two colours, "#rrggbb" or (r, g, b), by WCAG 2."""
    lights = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lights[0] + 0.05) / (lights[1] + 0.05)


def mixed(one, other, share):
    """`share` of one colour in another, as color-mix in srgb."""
    return tuple(share * a + (1 - share) * b for a, b in zip(rgb(one), rgb(other), strict=True))


def rgb(colour):
    if not isinstance(colour, str):
        return colour
    digits = colour.lstrip("#")
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    return tuple(int(digits[place : place + 2], 16) for place in (0, 2, 4))


def _luminance(colour):
    parts = [part / 255 for part in rgb(colour)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
