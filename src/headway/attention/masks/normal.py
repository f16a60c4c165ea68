"""The normal form: a union of conjunctions of literals, bands merged.

    (causal | prefix) & documents   ->   {causal, documents} or {prefix, documents}

Every literal is an atom or a negated atom. `~` moves inwards (De Morgan), a negated band is the two bands beside it,
and the bands of one conjunction intersect to one. Only the static structure is looked at, never a tensor's values.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.attention.masks.atoms import Band, Chunk, CuSegments, Dense, KeyRange, Predicate, Prefix, Segments
from headway.attention.masks.expr import And, Mask, Not, Or

MAX_TERMS = 32  # past this many conjunctions the tree itself is evaluated, as one opaque literal

POSITIONAL = (Band, Chunk, Prefix)  # an interval of key positions for each query
SLOTTED = (Segments, CuSegments, KeyRange)  # an interval of key slots for each query


@dataclass(frozen=True)
class Conjunction:
    """All of `literals` hold. At most one of them is a Band."""

    literals: tuple[Mask, ...]

    @property
    def positional(self) -> tuple[Mask, ...]:
        return tuple(m for m in self.literals if isinstance(m, POSITIONAL))

    @property
    def slotted(self) -> tuple[Mask, ...]:
        return tuple(m for m in self.literals if isinstance(m, SLOTTED))

    @property
    def other(self) -> tuple[Mask, ...]:
        return tuple(m for m in self.literals if not isinstance(m, POSITIONAL + SLOTTED))


def normalise(mask: Mask) -> tuple[Conjunction, ...]:
    """The union of conjunctions that equals `mask`."""
    terms = _terms(mask, negated=False)
    if terms is None:
        return (Conjunction((mask,)),)
    return tuple(Conjunction(_merge_bands(t)) for t in terms)


def _terms(mask: Mask, negated: bool) -> list[tuple[Mask, ...]] | None:
    if isinstance(mask, Not):
        return _terms(mask.part, not negated)
    if isinstance(mask, And | Or):
        parts = [_terms(p, negated) for p in mask.parts]
        if any(p is None for p in parts):
            return None
        if isinstance(mask, Or) != negated:  # a union (an `&` under `~` is one)
            terms = [t for p in parts for t in p]  # type: ignore[union-attr]
        else:
            terms = [()]
            for p in parts:
                terms = [t + u for t in terms for u in p]  # type: ignore[union-attr]
                if len(terms) > MAX_TERMS:
                    return None
        return terms if len(terms) <= MAX_TERMS else None
    if not negated:
        return [(mask,)]
    if isinstance(mask, Band):
        return _beside(mask)
    if isinstance(mask, Dense):
        return [(Dense(~mask.allowed),)]
    return [(Not(mask),)]


def _beside(band: Band) -> list[tuple[Mask, ...]]:
    """Everything outside a band, as bands."""
    out: list[tuple[Mask, ...]] = []
    if band.left is not None:
        out.append((Band(None, -band.left - 1),))
    if band.right is not None:
        out.append((Band(-band.right - 1, None),))
    return out or [(Band(0, -1),)]  # nothing lies outside an unbounded band


def _merge_bands(literals: tuple[Mask, ...]) -> tuple[Mask, ...]:
    bands = [m for m in literals if isinstance(m, Band)]
    rest = tuple(m for m in literals if not isinstance(m, Band))
    if not bands:
        return rest
    lefts = [b.left for b in bands if b.left is not None]
    rights = [b.right for b in bands if b.right is not None]
    if not lefts and not rights and rest:
        return rest
    return (Band(min(lefts) if lefts else None, min(rights) if rights else None), *rest)


def kind_of(mask: Mask | None) -> str:
    """A short static name of what the mask needs: none, causal, window, rows, documents, dense, predicate.

    `rows` means one interval of keys per query; `documents` the same with documents in it; `dense` and `predicate` need
    entries looked at one by one.
    """
    if mask is None:
        return "none"
    terms = normalise(mask)
    literals = [m for t in terms for m in t.literals]
    if any(isinstance(m, Predicate) or (isinstance(m, Not) and isinstance(m.part, Predicate)) for m in literals):
        return "predicate"
    if not union_is_interval(terms):
        return "dense"
    if any(isinstance(m, Segments | CuSegments) for m in literals):
        return "documents"
    if len(literals) == 1 and isinstance(literals[0], Band):
        return "causal" if literals[0].left is None and literals[0].right == 0 else "window"
    return "rows"


def union_is_interval(terms: tuple[Conjunction, ...]) -> bool:
    """Whether the union is, for every query, one interval of keys, by structure alone.

    So it is if there is one conjunction, or if the slot literals are the same in all and the position intervals all
    reach down without bound (causal, prefix) or all reach up.
    """
    if any(t.other for t in terms):
        return False
    if len(terms) == 1:
        return True
    if not all(_same(t.slotted, terms[0].slotted) for t in terms):
        return False
    return all(_open(t, "left") for t in terms) or all(_open(t, "right") for t in terms)


def _same(a: tuple[Mask, ...], b: tuple[Mask, ...]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b))


def _open(term: Conjunction, side: str) -> bool:
    def unbounded(m: Mask) -> bool:
        if isinstance(m, Band):
            return getattr(m, side) is None
        return isinstance(m, Prefix) and side == "left"

    return all(unbounded(m) for m in term.positional)
