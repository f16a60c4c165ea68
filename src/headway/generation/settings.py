"""What a generation call may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import InputError


@dataclass(frozen=True)
class Settings:
    """max_new_tokens: at most so many. temperature: 0 is greedy. top_k, top_p, min_p: keep the k likeliest tokens, the
    fewest whose mass reaches p, those at least min_p times as likely as the likeliest (Nguyen et al. 2024); all that are
    given apply, in this order. repetition_penalty: divides positive and multiplies negative logits of tokens seen
    (Keskar et al. 2019). seed: of the sampling, row by row, so that a batch draws as its rows would alone. stop_ids:
    tokens that end a row, besides the model's own end. beams: beam search if > 1; length_penalty: the power of the length
    that divides a beam's log-probability."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()
    beams: int = 1
    length_penalty: float = 1.0
    logprobs: bool = False

    def __post_init__(self):
        def need(ok: bool, text: str) -> None:
            if not ok:
                raise InputError(text)

        need(self.max_new_tokens >= 1, f"max_new_tokens must be at least 1, {self.max_new_tokens} was given")
        need(self.temperature >= 0, f"temperature must be 0 (greedy) or positive, {self.temperature} was given")
        need(self.top_k is None or self.top_k >= 1, f"top_k must be at least 1, {self.top_k} was given")
        need(self.top_p is None or 0 < self.top_p <= 1, f"top_p must be in (0, 1], {self.top_p} was given")
        need(self.min_p is None or 0 <= self.min_p <= 1, f"min_p must be in [0, 1], {self.min_p} was given")
        need(self.repetition_penalty > 0, f"repetition_penalty must be positive, {self.repetition_penalty} was given")
        need(self.beams >= 1, f"beams must be at least 1, {self.beams} was given")
        need(
            self.beams == 1 or self.repetition_penalty == 1,
            "beam search takes no repetition_penalty; leave it, or beams, at 1",
        )
        need(self.beams == 1 or self.temperature == 0, "beam search is greedy; leave temperature at 0, or beams at 1")
