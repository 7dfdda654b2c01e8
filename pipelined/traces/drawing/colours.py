"""Colours of a timeline: hue by stage, lightness by pipe.

They are made in OKLCH (Ottosson, 2020), where equal steps look equal, so that no stage stands out and every number on
a box can be read in one ink.
"""

from math import cos, radians, sin

Colour = tuple[float, float, float]

INK = (0.11, 0.11, 0.12)
FIRST_HUE, HUES = 255.0, 310.0  # from blue round to cyan; the gap keeps the last stage apart from the first
DARKEST, LIGHTEST = 0.70, 0.87


def stage_colour(stage: int, depth: int, pipe: int, pipes: int) -> Colour:
    """The fill of a box."""
    hue = FIRST_HUE + HUES * stage / depth
    return _oklch(_lightness(pipe, pipes), 0.135 - 0.07 * _share(pipe, pipes), hue)


def foot_colour(stage: int, depth: int, pipe: int, pipes: int) -> Colour:
    """The dark foot that marks a backward."""
    return _oklch(_lightness(pipe, pipes) - 0.28, 0.11, FIRST_HUE + HUES * stage / depth)


def pipe_colour(pipe: int, pipes: int) -> Colour:
    """A pipe's shade without a hue, for the legend."""
    return _oklch(_lightness(pipe, pipes), 0.0, 0.0)


def _share(pipe: int, pipes: int) -> float:
    return pipe / (pipes - 1) if pipes > 1 else 0.0


def _lightness(pipe: int, pipes: int) -> float:
    return DARKEST + (LIGHTEST - DARKEST) * _share(pipe, pipes)


def _oklch(lightness: float, chroma: float, hue: float) -> Colour:
    """The colour in sRGB, cut to what a screen can show."""
    a = chroma * cos(radians(hue))
    b = chroma * sin(radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        _gamma(4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short),
        _gamma(-1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short),
        _gamma(-0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short),
    )


def _gamma(linear: float) -> float:
    linear = min(max(linear, 0.0), 1.0)
    return 12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055
