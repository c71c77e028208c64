"""Transforms of a data set as passes on the GPU: which of them can be moved there, and how. Pure.

    members of a Compose ─► Move of each (known_torchvision, known_albumentations) ─► Chain

What can be moved is the longest tail of the members of which each is known; those before it stay in the workers, in
their order. A tail has to turn the image into a tensor: what a worker then hands over are bytes, not floats.

One pass of GPUAugmentation does crop, geometry, colour, blur, normalisation and erasing, in that order, and fills what
lies outside the image last. Members that come in another order, twice, or with a probability that the pass has no
setting for, begin a further pass; so do those that a pass does, but not to the same effect: it turns a crop together
with what lies beside it, where theirs has empty corners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["crop", "move", "flip", "colour", "blur", "convert", "normalize", "erase", "nothing"]

PLAIN: Mapping[str, Any] = {
    "horizontal_flip_prob": 0.0, "rotation_degrees": 0.0, "brightness": 0.0, "contrast": 0.0,
}  # fmt: skip
"""What GPUAugmentation has to be told to do nothing by itself."""

_AFTER: Mapping[Kind, frozenset[Kind]] = {
    # A member may join a pass that has these already.
    "crop": frozenset({"flip", "colour"}),
    "move": frozenset({"crop", "flip", "colour"}),
    "flip": frozenset({"crop", "move", "flip", "colour", "blur"}),
    "colour": frozenset({"crop", "move", "flip", "colour"}),
    "blur": frozenset({"crop", "move", "flip", "colour"}),
    "normalize": frozenset({"crop", "move", "flip", "colour", "blur"}),
    "erase": frozenset({"crop", "move", "flip", "colour", "blur", "normalize"}),
}
_COLOURS = (
    "brightness", "contrast", "saturation", "gray_prob", "invert_prob", "hue", "gamma", "solarize_prob",
    "posterize_prob",
)  # fmt: skip
"""In the order in which a pass does them."""
_LEAVE_GRAY = frozenset({"saturation", "hue", "gray_prob"})
_LEAVE_BLACK = _LEAVE_GRAY | {"brightness", "solarize_prob", "posterize_prob"}
"""Colours that leave a gray, and those that leave black, as it is."""
_NEARLY = 0.01
"""Of ratios that are written with a few digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What one transform is on the GPU."""

    kind: Kind
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of GPUAugmentation."""
    probability: float = 1.0
    """With which all of it is done; probabilities that are options of their own are in `options`."""
    scales: bool = False
    """Floats from 0 to 1 are made of bytes."""

    @property
    def random(self) -> bool:
        fixed = self.kind in ("convert", "normalize", "nothing") or self.options.keys() <= {"size", "antialias"}
        return not fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One call of GPUAugmentation."""

    options: Mapping[str, Any]
    probability: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """How a Compose is done in two places."""

    stay: int
    """So many of its first members stay in the workers."""
    passes: tuple[Pass, ...]
    floats: bool
    """What comes out are floats; else 8 bits."""
    names: tuple[str, ...]
    """Of the members that move."""

    def by_hand(self) -> str:
        """The same as an expression."""
        calls = [_call(one) for one in self.passes]
        return calls[0] if len(calls) == 1 else f"[{', '.join(calls)}]"


Known = Callable[[Any], Move | None]


def made(makers: Mapping[str, Known], transform: Any) -> Move | None:
    """By the maker for its class's name."""
    make = makers.get(type(transform).__name__)
    try:
        return None if make is None else make(transform)
    except (AttributeError, TypeError, ValueError, KeyError, IndexError):  # of another version, with other attributes
        return None


def chain_of(members: Sequence[Any], known: Known) -> Chain | None:
    """The chain for a Compose's members; None where nothing random can be moved."""
    moves = [known(member) for member in members]
    for stay in range(len(moves)):
        tail = moves[stay:]
        found = None if None in tail else _passes([move for move in tail if move is not None])
        if found is None:
            continue
        passes, floats = found
        if not any(move is not None and move.random for move in tail):
            return None  # an evaluation's: always the same
        names = tuple(type(member).__name__ for member in members[stay:])
        return Chain(stay=stay, passes=passes, floats=floats, names=names)
    return None


_LEFT_ALONE = frozenset({"Identity", "ToPureTensor"})
"""Of those that do nothing, the ones that draw nothing either."""


def tail_of(members: Sequence[Any], known: Known) -> int | None:
    """Where the members begin that make floats of bytes, each by itself, and draw nothing; None where none do."""
    begins, scales = len(members), False
    for place, member in reversed(list(enumerate(members))):
        move = known(member)
        if move is None or move.kind not in ("convert", "normalize", "nothing"):
            break
        if move.kind == "nothing" and type(member).__name__ not in _LEFT_ALONE:
            break
        begins, scales = place, scales or move.scales
    return begins if scales else None


def _passes(moves: Sequence[Move]) -> tuple[tuple[Pass, ...], bool] | None:
    """The passes for these, and whether floats come out; None where they are no such thing as GPUAugmentation does."""
    done: list[Pass] = []
    options: dict[str, Any] = {}
    kinds: set[Kind] = set()
    tensor = floats = False
    for move in moves:
        floats = floats or move.scales
        if move.kind in ("convert", "nothing"):
            tensor = tensor or move.kind == "convert"
            continue
        if "normalize" in kinds and move.kind != "erase":
            return None
        if "erase" in kinds:
            return None  # what is erased is written last
        joins = _joins(move, options, kinds)
        if not joins:
            if move.kind in ("normalize", "erase") and move.probability < 1.0:
                return None
            done += [Pass(options=options)] if options or not done else []
            options, kinds = {}, set()
        if move.probability < 1.0:
            if move.kind == "crop":
                return None  # sizes would differ
            done.append(Pass(options=dict(move.options), probability=move.probability))
            continue
        options |= move.options
        kinds.add(move.kind)
    if not tensor or ("normalize" in kinds and not floats):
        return None
    done += [Pass(options=options)] if options or not done else []
    return (tuple(done), floats) if all(_is_allowed(one.options) for one in done) and _are_of_one_size(done) else None


def _joins(move: Move, options: Mapping[str, Any], kinds: Set[Kind]) -> bool:
    """Whether a pass with these options does this, too, as if it came after them."""
    if move.probability < 1.0 or move.options.keys() & options.keys() or not kinds <= _AFTER[move.kind]:
        return False
    if move.kind == "move":
        if "size" in options and "antialias" in move.options:
            return False  # it is resized smoothly, and then not
        return not options.keys() & {"random_crop", "random_resized_crop"}
    if move.kind == "flip":  # a pass flips before it turns, and turned the other way is what a flip makes of it
        low, high = options.get("rotation_degrees", (0.0, 0.0))
        return bool(low == -high) and not ("move" in kinds and "quarter_turn_prob" in move.options)
    if move.kind == "crop":
        return "quarter_turn_prob" not in options or _turns_into_itself(move.options)
    return move.kind != "colour" or _colours_join(move.options.keys() & set(_COLOURS), options)


def _turns_into_itself(crop: Mapping[str, Any]) -> bool:
    """Width and height could be exchanged."""
    height, width = crop.get("size") or crop["random_crop"]
    low, high = crop.get("crop_ratio", (1.0, 1.0))
    return bool(height == width and abs(low * high - 1.0) < _NEARLY)


def _colours_join(names: Iterable[str], options: Mapping[str, Any]) -> bool:
    """In the pass's order, and without effect on what it fills with."""
    places = [_COLOURS.index(name) for name in names]
    before = [place for place, name in enumerate(_COLOURS) if name in options]
    fill = options.get("fill", "none")
    left = set(names) <= (_LEAVE_BLACK if fill == 0.0 else _LEAVE_GRAY)
    return max(before, default=-1) < min(places) and (isinstance(fill, str) or left)


def _are_of_one_size(passes: Sequence[Pass]) -> bool:
    """Where a crop makes them so, it has to be the first pass's: others take no images of different sizes."""
    sized = [bool(one.options.keys() & {"size", "random_crop"}) for one in passes]
    return sized[0] or not any(sized)


def _is_allowed(options: Mapping[str, Any]) -> bool:
    from fulltilt.augment.settings import problems_in

    return not problems_in(dict(options))


def _call(one: Pass) -> str:
    # Those that GPUAugmentation has by itself are said, too: the expression is to do this and nothing else.
    told = ", ".join(f"{name}={value!r}" for name, value in {**PLAIN, **one.options}.items())
    often = "" if one.probability >= 1.0 else f" for {one.probability:.0%} of the samples"
    return f"GPUAugmentation({told}){often}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a data set keeps a Compose that can be moved."""

    owner: Any
    name: str
    compose: Any
    members: tuple[Any, ...]
    chain: Chain
    named: bool
    """It is called as Albumentations' are: `transform(image=…)["image"]`."""


def places(dataset: Any) -> tuple[Place, ...]:
    """Of a data set and those that it wraps; empty where there are none, or where they are not one and the same."""
    found = tuple(place for one in _held(dataset) if (place := _place(*one)) is not None)
    chains = {repr((place.chain.passes, place.chain.floats)) for place in found}
    return found if len(chains) == 1 else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TailPlace:
    """Where a data set keeps a Compose whose last members make floats of bytes."""

    owner: Any
    name: str
    compose: Any
    tail: tuple[Any, ...]


def tails(dataset: Any) -> tuple[TailPlace, ...]:
    """Of a data set and those that it wraps.

    torchvision's alone: Albumentations draws a number for every transform, those that are always done among them.
    """
    from fulltilt.launch.apply import known_torchvision

    found: list[TailPlace] = []
    for owner, name, value in _held(dataset):
        members = known_torchvision.members(value)
        begins = None if members is None else tail_of(members, known_torchvision.known)
        if members is not None and begins is not None:
            found.append(TailPlace(owner=owner, name=name, compose=value, tail=tuple(members[begins:])))
    return tuple(found)


def _held(dataset: Any) -> Iterator[tuple[Any, str, Any]]:
    """What a data set and those that it wraps have as their own, by owner and name."""
    from fulltilt.launch.watch.transforms import datasets

    for one in datasets(dataset):
        yield from _own(one, depth=2)


def _own(owner: Any, *, depth: int) -> Iterator[tuple[Any, str, Any]]:
    for name, value in list(getattr(owner, "__dict__", {}).items()):
        yield owner, name, value
        if depth and _is_standard(value):  # torchvision's pair of a transform and one for targets
            yield from _own(value, depth=depth - 1)


def _place(owner: Any, name: str, value: Any) -> Place | None:
    from fulltilt.launch.apply import known_albumentations, known_torchvision

    for module in (known_torchvision, known_albumentations):
        members = module.members(value)
        chain = None if members is None else chain_of(members, module.known)
        if members is not None and chain is not None:
            named = module is known_albumentations
            return Place(owner=owner, name=name, compose=value, members=tuple(members), chain=chain, named=named)
    return None


def _is_standard(value: Any) -> bool:
    return isinstance(getattr(value, "__dict__", None), dict) and "target_transform" in vars(value)


def is_from(value: Any, package: str) -> bool:
    return type(value).__module__.split(".")[0] == package


def same(values: Iterable[Any]) -> bool:
    """All of them equal."""
    return len(set(values)) <= 1


def span(value: Any) -> tuple[float, float]:
    """From the lowest to the highest, as libraries keep it: in a tuple or list of two."""
    low, high = (float(one) for one in value)
    return low, high
