"""A moving picture of live captions: the source as it is spoken, and beside it what has been written by then."""

from collections.abc import Sequence
from pathlib import Path

from .pictures import READ_COLOR, WRITE_COLOR, pyplot


WIDTH, MARGIN, GAP, SIZE, LINES = 760, 18, 28, 15, 9
PAPER, INK = "#ffffff", "#222222"
SHADES = 4  # of each ink, for smooth letters; all frames share one palette, which keeps the file small
HOLD = 12  # frames that the end stays


def wrapped(words: Sequence[str], width: float, length) -> list[list[int]]:
    """Words by their numbers, in lines that are no wider than `width`; `length` measures a text."""
    lines: list[list[int]] = [[]]
    for number, word in enumerate(words):
        line = " ".join([*(words[index] for index in lines[-1]), word])
        if lines[-1] and length(line) > width:
            lines.append([])
        lines[-1].append(number)
    return lines


def palette(inks: Sequence[str]) -> list[int]:
    """Paper, and each ink in some shades towards it: red, green, blue, red, ..."""
    rgb = [[int(color[place : place + 2], 16) for place in (1, 3, 5)] for color in (PAPER, *inks)]
    shades = [
        round(white + (value - white) * step / SHADES)
        for ink in rgb[1:]
        for step in range(1, SHADES + 1)
        for white, value in zip(rgb[0], ink)
    ]
    return rgb[0] + shades


def animate_captions(
    source: Sequence[str], target: Sequence[str], path: Sequence[int], output: str | Path, words_per_minute: float
):
    """A GIF with one frame per source word; what is new in it has a colour. Old lines scroll away."""
    pyplot()  # says what to install where it is missing
    from matplotlib.font_manager import findfont
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(findfont("DejaVu Sans"), SIZE)
    column, height = (WIDTH - 2 * MARGIN - GAP) / 2, round(1.5 * SIZE)
    sides = [(words, wrapped(words, column, font.getlength)) for words in (source, target)]
    colors = Image.new("P", (1, 1))
    colors.putpalette(palette((INK, READ_COLOR, WRITE_COLOR)))
    frames = []
    for read in range(1, len(source) + 1):
        image = Image.new("RGB", (WIDTH, 2 * MARGIN + LINES * height), PAPER)
        draw = ImageDraw.Draw(image)
        written = [sum(stop <= count for stop in path) for count in (read - 1, read)]
        for side, (words, lines), (before, now), color in zip(
            (0, 1), sides, ((read - 1, read), written), (READ_COLOR, WRITE_COLOR)
        ):
            shown = [line for line in lines if line and line[0] < now][-LINES:]
            for row, line in enumerate(shown):
                x = MARGIN + side * (column + GAP)
                for number in line:
                    if number < now:
                        ink = color if number >= before else INK
                        draw.text((x, MARGIN + row * height), words[number], ink, font)
                        x += font.getlength(words[number] + " ")
        frames.append(image.quantize(palette=colors, dither=Image.Dither.NONE))
    duration = 60_000 / words_per_minute
    durations = [duration] * (len(frames) - 1) + [HOLD * duration]
    frames[0].save(output, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)
