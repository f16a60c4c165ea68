"""Masks: pictures, algebra, and every lowering against brute force."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask
from torch.utils import _pytree as pytree

from headway.attention import masks
from headway.attention.masks.draw import draw_png

PICTURED = {
    "causal": (lambda q, k: masks.causal()),
    "window": (lambda q, k: masks.window(1, 0)),
    "sliding": (lambda q, k: masks.sliding(total=3)),
    "sliding_bidirectional": (lambda q, k: masks.sliding_bidirectional(radius=1)),
    "prefix": (lambda q, k: masks.prefix(2)),
    "chunked": (lambda q, k: masks.chunked(2)),
    "documents": lambda q, k: (
        masks.documents(torch.tensor([0, 1]), torch.tensor([0, 0, 1, 1, 1]))
        if q == 2
        else masks.documents(torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 1]))
    ),
    "lengths": (lambda q, k: masks.lengths(kv=3, q=1) if q == 2 else masks.lengths(kv=1)),
    "padding": (lambda q, k: masks.padding(torch.tensor([[0, 1, 1, 1, 0]] if q == 2 else [[0, 1]]).bool())),
    "dense": (lambda q, k: masks.dense(torch.eye(q, k).bool())),
    "predicate": (lambda q, k: masks.predicate(lambda b, h, q, k: (q + k) % 2 == 0)),
}


@pytest.mark.parametrize("name", PICTURED)
def test_docstring_pictures_are_what_the_mask_draws(name):
    """Each constructor's docstring draws q=2/k=5 on the left and q=5/k=2 on the right."""
    source = getattr(masks, name)
    text = inspect.getdoc(source if inspect.isfunction(source) else type(source))
    rows = [line for line in text.splitlines() if re.fullmatch(r"(q=2/k=5)?\s*([#.] ?){2,}.*", line)]
    left, right = [], []
    for line in rows:
        cells = re.findall(r"(?:[#.] ?){2,}", line.replace("q=2/k=5", "").replace("q=5/k=2", "    "))
        cells = [c.strip() for c in cells]
        if len(cells[0].split()) == 5:
            left.append(cells.pop(0))
        right += cells
    assert left == PICTURED[name](2, 5).draw(2, 5).splitlines()
    assert right == PICTURED[name](5, 2).draw(5, 2).splitlines()


# ---------------------------------------------------------------- random expressions against brute force


class Case:
    """Lengths, positions and the tensors that atoms draw from, so that a tree can be evaluated by hand."""

    def __init__(self, seed: int):
        g = torch.Generator().manual_seed(seed)

        def integer(low, high):
            return int(torch.randint(low, high, (1,), generator=g))

        self.batch, self.heads = integer(1, 3), integer(1, 3)
        self.q_len, self.kv_len = integer(1, 13), integer(1, 13)
        self.lengths = torch.randint(0, self.kv_len + 1, (self.batch,), generator=g)
        self.q_lengths = torch.randint(0, self.q_len + 1, (self.batch,), generator=g)
        self.prefix = torch.randint(0, 6, (self.batch,), generator=g)
        self.dense = torch.rand(self.batch, self.heads, self.q_len, self.kv_len, generator=g) > 0.4
        self.padding = torch.rand(self.batch, self.kv_len, generator=g) > 0.4
        self.q_ids = torch.sort(torch.randint(-1, 3, (self.batch, self.q_len), generator=g)).values
        self.kv_ids = torch.sort(torch.randint(-1, 3, (self.batch, self.kv_len), generator=g)).values
        self.cu_q = torch.tensor([0, self.q_len // 2, max(self.q_len - 1, self.q_len // 2)])
        self.cu_kv = torch.tensor([0, self.kv_len // 3, max(self.kv_len - 2, self.kv_len // 3)])

    def atoms(self):
        """(mask, by-hand rule over (b, h, q slot, k slot, q position, k position))."""
        doc = lambda cu, i: next((n for n in range(len(cu) - 1) if cu[n] <= i < cu[n + 1]), None)
        return [
            (masks.causal(), lambda b, h, q, k, qp, kp: kp <= qp),
            (masks.window(2, 1), lambda b, h, q, k, qp, kp: qp - 2 <= kp <= qp + 1),
            (masks.window(None, 2), lambda b, h, q, k, qp, kp: kp <= qp + 2),
            (masks.window(0, None), lambda b, h, q, k, qp, kp: kp >= qp),
            (masks.sliding(total=3), lambda b, h, q, k, qp, kp: qp - 3 < kp <= qp),
            (masks.sliding_bidirectional(radius=1), lambda b, h, q, k, qp, kp: abs(qp - kp) <= 1),
            (masks.chunked(3), lambda b, h, q, k, qp, kp: qp // 3 == kp // 3),
            (masks.prefix(self.prefix), lambda b, h, q, k, qp, kp: kp < int(self.prefix[b])),
            (
                masks.lengths(kv=self.lengths, q=self.q_lengths),
                lambda b, h, q, k, qp, kp: k < int(self.lengths[b]) and q < int(self.q_lengths[b]),
            ),
            (masks.dense(self.dense), lambda b, h, q, k, qp, kp: bool(self.dense[b, h, q, k])),
            (masks.padding(self.padding), lambda b, h, q, k, qp, kp: bool(self.padding[b, k])),
            (
                masks.documents(self.q_ids, self.kv_ids),
                lambda b, h, q, k, qp, kp: self.q_ids[b, q] == self.kv_ids[b, k] and self.kv_ids[b, k] >= 0,
            ),
            (
                masks.documents.from_cu_seqlens(self.cu_q, self.cu_kv),
                lambda b, h, q, k, qp, kp: doc(self.cu_q, q) is not None and doc(self.cu_q, q) == doc(self.cu_kv, k),
            ),
            (
                masks.predicate(lambda b, h, q, k: (q + 2 * k + h) % 3 != 0),
                lambda b, h, q, k, qp, kp: (qp + 2 * kp + h) % 3 != 0,
            ),
        ]


trees = st.recursive(
    st.integers(0, 13),
    lambda inner: st.one_of(
        st.tuples(st.just("&"), inner, inner), st.tuples(st.just("|"), inner, inner), st.tuples(st.just("~"), inner)
    ),
    max_leaves=5,
)


def build(tree, atoms):
    if isinstance(tree, int):
        return atoms[tree]
    if tree[0] == "~":
        m, rule = build(tree[1], atoms)
        return ~m, lambda *a: not rule(*a)
    (m1, r1), (m2, r2) = build(tree[1], atoms), build(tree[2], atoms)
    if tree[0] == "&":
        return m1 & m2, lambda *a: r1(*a) and r2(*a)
    return m1 | m2, lambda *a: r1(*a) or r2(*a)


def by_hand(case: Case, rule) -> torch.Tensor:
    out = torch.zeros(case.batch, case.heads, case.q_len, case.kv_len, dtype=torch.bool)
    offset = case.kv_len - case.q_len
    for b, h, q, k in torch.cartesian_prod(*(torch.arange(n) for n in out.shape)).reshape(-1, 4).tolist():
        out[b, h, q, k] = bool(rule(b, h, q, k, q + offset, k))
    return out


def from_bounds(lo, hi, case) -> torch.Tensor:
    k = torch.arange(case.kv_len)
    return ((k >= lo[:, None, :, None]) & (k < hi[:, None, :, None])).expand(case.batch, case.heads, -1, -1)


@given(tree=trees, seed=st.integers(0, 10_000))
def test_every_lowering_equals_the_expression_evaluated_by_hand(tree, seed):
    case = Case(seed)
    mask, rule = build(tree, case.atoms())
    want = by_hand(case, rule)
    bound = mask.bind(case.q_len, case.kv_len, batch=case.batch, heads=case.heads)
    assert torch.equal(bound.to_bool().expand_as(want), want)

    rows = bound.to_row_bounds()
    if rows is not None:
        assert torch.equal(from_bounds(*rows, case), want)
    lo, hi, rest = bound.to_hull_and_rest()
    hull = from_bounds(lo, hi, case)
    assert torch.equal(hull if rest is None else hull & rest, want)
    assert not (want & ~hull).any()

    tiles = bound.to_tiles(4)
    for b in range(tiles.shape[0]):
        plan = [r for r in tiles[b].tolist() if r[0] < case.q_len]
        assert [r[0] for r in plan] == sorted({r[0] for r in plan}) and plan[0][0] == 0
        for (q0, k0, k1, c0, c1, empty), q1 in zip(plan, [r[0] for r in plan[1:]] + [case.q_len]):
            part = hull[b if tiles.shape[0] > 1 else slice(None), :, q0:q1]
            assert 0 < q1 - q0 <= 4
            assert not part[..., :k0].any() and not part[..., k1:].any()
            if c0 < c1:
                assert part[..., c0:c1].all()
            assert bool(empty) or part.any(-1).all()


@given(tree=trees, seed=st.integers(0, 200))
def test_mask_mod_and_block_mask_equal_the_expression(tree, seed):
    case = Case(seed)
    mask, rule = build(tree, case.atoms())
    want = by_hand(case, rule)
    bound = mask.bind(case.q_len, case.kv_len, batch=case.batch, heads=case.heads)
    got = create_mask(bound.to_mask_mod(), case.batch, case.heads, case.q_len, case.kv_len, device="cpu")
    assert torch.equal(got, want)
    blocks = bound.to_block_mask(128)
    dense = blocks.to_dense()[..., :1, :1] > 0  # a single block: touched if anything is kept
    kept = want.flatten(2).any(-1)
    assert not (kept & ~dense[..., 0, 0].expand_as(kept)).any()


def test_block_mask_from_row_bounds_marks_exactly_the_touched_and_the_full_blocks():
    mask = masks.causal() & masks.documents.from_cu_seqlens(torch.tensor([0, 200, 500, 640]))
    bound = mask.bind(640, 640)
    blocks = bound.to_block_mask(128)
    cells = bound.to_bool()[0, 0].view(5, 128, 5, 128)
    touched, full = cells.any(3).any(1), cells.all(3).all(1)
    assert torch.equal(blocks.to_dense()[0, 0] > 0, touched)
    got = torch.zeros(5, 5, dtype=torch.bool)
    for row in range(5):
        n = int(blocks.full_kv_num_blocks[0, 0, row])
        got[row, blocks.full_kv_indices[0, 0, row, :n].long()] = True
    assert torch.equal(got, full)


@given(tree=trees)
def test_equality_and_hash_go_by_structure_and_a_pytree_round_trip_changes_nothing(tree):
    a, b = build(tree, Case(1).atoms())[0], build(tree, Case(1).atoms())[0]
    leaves, spec = pytree.tree_flatten(a)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    assert pytree.tree_unflatten(leaves, spec) == a
    assert hash(a) == hash(pytree.tree_unflatten(leaves, spec))
    if "predicate" not in repr(a).lower():  # each call makes a new function
        assert a == b and hash(a) == hash(b)
    assert a != (a & masks.window(7, 7))


def test_equality_reads_values_hash_does_not():
    a, b = masks.documents(torch.tensor([0, 0, 1])), masks.documents(torch.tensor([0, 1, 1]))
    assert hash(a) == hash(b) and a != b


def test_unions_keep_both_parts():
    assert (masks.causal() | masks.prefix(2)).draw(3, 3) == "# # .\n# # .\n# # #"
    corner = torch.zeros(3, 3, dtype=torch.bool)
    corner[0, 2] = True
    assert (masks.causal() | masks.dense(corner)).draw(3, 3) == "# . #\n# # .\n# # #"


def test_positions_belong_to_the_call():
    ring = torch.tensor([[4, 5, 2, 3]])  # a ring cache: slots in another order than positions
    bound = masks.sliding(total=3).bind(1, 4, q_positions=torch.tensor([5]), kv_positions=ring)
    assert bound.to_bool()[0, 0].tolist() == [[True, True, False, True]]
    assert bound.to_row_bounds() is None and bound.kind == "dense"


def test_holes_keep_their_distances():
    positions = torch.tensor([[0, 1, 5, 6, 0, 3]])  # two documents, with holes
    mask = masks.documents.from_cu_seqlens(torch.tensor([0, 4, 6])) & masks.sliding_bidirectional(radius=2)
    bound = mask.bind(6, 6, q_positions=positions, kv_positions=positions)
    want = "# # . . . .\n# # . . . .\n. . # # . .\n. . # # . .\n. . . . # .\n. . . . . #"
    assert bound.draw() == want
    lo, hi = bound.to_row_bounds()
    assert lo[0].tolist() == [0, 0, 2, 2, 4, 5] and hi[0].tolist() == [2, 2, 4, 4, 5, 6]


def test_positions_that_do_not_ascend_inside_a_document_are_refused():
    mask = masks.documents.from_cu_seqlens(torch.tensor([0, 3])) & masks.causal()
    with pytest.raises(ValueError, match="ascend"):
        mask.bind(3, 3, q_positions=torch.arange(3), kv_positions=torch.tensor([0, 2, 1])).to_row_bounds()


def test_documents_must_be_contiguous():
    with pytest.raises(ValueError, match="two separate runs"):
        masks.documents(torch.tensor([0, 1, 0])).bind(3, 3).to_row_bounds()


@pytest.mark.parametrize(
    "make, error, says",
    [
        (lambda: masks.dense(torch.zeros(2, 2)), TypeError, "bias="),
        (lambda: masks.padding(torch.ones(2, 2)), TypeError, r"\.bool\(\)"),
        (lambda: masks.causal() & torch.zeros(2, 2), TypeError, "bias="),
        (lambda: masks.causal() & torch.ones(2, 2).bool(), TypeError, "masks.dense"),
        (lambda: masks.window(-1, 0), ValueError, ">= 0"),
        (lambda: masks.sliding(total=0), ValueError, ">= 1"),
        (lambda: masks.chunked(0), ValueError, ">= 1"),
        (lambda: masks.lengths(), ValueError, "at least one"),
        (lambda: masks.documents(torch.tensor([0.5])), TypeError, "integers"),
        (lambda: masks.predicate(3), TypeError, "function"),
        (lambda: bool(masks.causal()), TypeError, "& | ~"),
        (lambda: masks.dense(torch.ones(3, 4).bool()).bind(3, 5), ValueError, "another length"),
        (lambda: masks.documents(torch.tensor([0, 0])).bind(3, 3), ValueError, "another length"),
        (lambda: masks.documents.from_cu_seqlens(torch.tensor([0, 9])).bind(3, 3), ValueError, "another length"),
        (lambda: masks.documents.from_cu_seqlens(torch.tensor([1, 3])).bind(3, 3), ValueError, "start at 0"),
        (lambda: masks.documents.from_cu_seqlens(torch.tensor([0, 2, 1])).bind(3, 3), ValueError, "never descend"),
        (lambda: masks.lengths(kv=torch.tensor([1, 2])).bind(3, 3, batch=3), ValueError, "another length"),
        (lambda: masks.causal().bind(3, 3, q_positions=torch.zeros(3)), TypeError, "integers"),
        (lambda: masks.causal().bind(3, 3, q_positions=torch.zeros(2).long()), ValueError, "accepted are"),
    ],
)
def test_malformed_masks_say_what_to_do(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_drawing_a_png(tmp_path):
    from PIL import Image

    path = tmp_path / "mask.png"
    draw_png(masks.causal(), 3, 3, path, scale=4)
    image = Image.open(path).convert("RGB")
    assert image.size == (12, 12)
    assert image.getpixel((0, 0)) == (0x1F, 0x77, 0xB4) and image.getpixel((11, 0)) == (0xEE, 0xEE, 0xEE)
