"""FlexAttention's BlockMask, built from row bounds where the mask has them.

`create_block_mask` evaluates all n x n entries; the row bounds give the same blocks from two vectors.
"""

from __future__ import annotations

import torch


def block_mask(bound, block: int):
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask

    mod = bound.to_mask_mod()
    rows = bound.to_row_bounds()
    if rows is None:
        return create_block_mask(
            mod, bound.batch, bound.heads, bound.q_len, bound.kv_len, device=str(bound.device), BLOCK_SIZE=block
        )
    lo, hi = rows
    n_q, n_k = -(-bound.q_len // block), -(-bound.kv_len // block)
    spare = n_q * block - bound.q_len
    some = hi > lo
    # the hull of the rows of a block, and the part that all of its rows see
    first = _by_block(torch.where(some, lo, bound.kv_len), n_q, spare, bound.kv_len).amin(-1)
    last = _by_block(torch.where(some, hi, 0), n_q, spare, 0).amax(-1)
    all_from = _by_block(torch.where(some, lo, bound.kv_len), n_q, spare, 0).amax(-1)
    all_to = _by_block(torch.where(some, hi, 0), n_q, spare, bound.kv_len).amin(-1)
    start = torch.arange(n_k, device=lo.device) * block
    end = (start + block).clamp(max=bound.kv_len)
    touched = (start < last[..., None]) & (end > first[..., None]) & (first < last)[..., None]  # (B, n_q, n_k)
    full = touched & (start >= all_from[..., None]) & (end <= all_to[..., None])
    # a block that reaches past the last key or query is never full for FlexAttention
    full &= (start + block <= bound.kv_len) & ((torch.arange(n_q, device=lo.device) + 1) * block <= bound.q_len)[:, None]
    partial = touched & ~full
    return BlockMask.from_kv_blocks(
        *(*_ordered(partial), *_ordered(full)),
        BLOCK_SIZE=block,
        mask_mod=mod,
        seq_lengths=(bound.q_len, bound.kv_len),  # type: ignore[misc]
    )


def _by_block(rows, n_q, spare, fill):
    return torch.nn.functional.pad(rows, (0, spare), value=fill).unflatten(-1, (n_q, -1))


def _ordered(blocks):
    """(B, n_q, n_k) bool -> counts (B, 1, n_q) and the indices of the true ones first (B, 1, n_q, n_k), int32."""
    order = torch.argsort(blocks.int(), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32)[:, None], order.int()[:, None].contiguous()
