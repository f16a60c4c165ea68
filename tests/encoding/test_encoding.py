"""Encoding: order, budgets, files that are interrupted."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from headway.encoding import Encoder
from headway.encoding.files import Job, embed_file
from headway.errors import HeadwayError, InputError
from tests.models.families import build


class Words:
    """A tokenizer of words by length, enough to turn lines into ids."""

    max_length = None

    def encode(self, texts, **_):
        from types import SimpleNamespace

        return [SimpleNamespace(input_ids=[3 + len(w) % 90 for w in t.split()] or [3]) for t in texts]


@pytest.fixture
def model():
    return build("modernbert", "base")[1]


def test_order_is_kept_and_the_budget_changes_nothing(model):
    rows = [[5] * n for n in (3, 17, 1, 9, 40, 2)]
    with torch.no_grad():
        want = torch.stack([model(input_ids=torch.tensor([r])).last_hidden_state[0].mean(0) for r in rows])
    for budget in (1, 20, 10_000):
        np.testing.assert_allclose(Encoder(model, budget=budget)(rows), want.numpy(), atol=1e-5)


def test_poolings_and_normalisation(model):
    rows = [[5, 6, 7], [8, 9]]
    tokens = Encoder(model, pooling="tokens")(rows)
    assert [t.shape for t in tokens] == [(3, 32), (2, 32)]
    np.testing.assert_allclose(Encoder(model, pooling="cls")(rows), [t[0] for t in tokens], atol=1e-6)
    np.testing.assert_allclose(Encoder(model, pooling="last")(rows), [t[-1] for t in tokens], atol=1e-6)
    unit = Encoder(model, normalize=True)(rows)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1.0, atol=1e-5)
    assert Encoder(model)([]).shape == (0, 32)


def test_no_more_tokens_than_the_budget_unless_a_text_is_longer(model):
    sizes = [sum(map(len, b)) for b in Encoder(model, budget=10).batches([[1] * n for n in (4, 5, 6, 12, 3, 3, 3, 3)])]
    assert sizes == [9, 6, 12, 9, 3]


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_files(model, tmp_path, suffix, kind):
    lines = ["word " * (i % 7 + 1) for i in range(30)]
    source = tmp_path / f"in.{kind}"
    source.write_text("\n".join(lines if kind == "txt" else (json.dumps({"text": t}) for t in lines)) + "\n")
    encoder = Encoder(model, Words())
    target = tmp_path / f"out{suffix}"
    assert embed_file(encoder, Job(source, target, "a")) == 30
    if suffix == ".npy":
        got = np.load(target)
    else:
        import pyarrow.parquet as pq

        got = np.stack(pq.read_table(target)["embedding"].to_numpy())
    np.testing.assert_allclose(got, encoder(lines), atol=1e-5)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([source.name, target.name])


def test_a_run_that_dies_goes_on_where_it_stood(model, tmp_path, monkeypatch):
    import headway.encoding.files as files

    monkeypatch.setattr(files, "FLUSH", 8)
    lines = ["word " * (i % 7 + 1) for i in range(60)]
    source, target = tmp_path / "in.txt", tmp_path / "out.npy"
    source.write_text("\n".join(lines) + "\n")
    encoder = Encoder(model, Words(), budget=12)
    want = encoder(lines)
    job, started = Job(source, target, "a"), []

    class Killed(BaseException):
        pass

    for _ in range(3):
        calls = [0]

        def progress(done, calls=calls):
            calls[0] += 1
            started.append(done) if calls[0] == 1 else None
            if calls[0] == 3:
                raise Killed

        with pytest.raises(Killed):
            embed_file(encoder, job, progress)
        with open(job.part, "ab") as f:
            f.write(b"torn row")  # what a kill in the middle of a write leaves
    embed_file(encoder, job)
    assert started == sorted(started) and started[-1] > 0
    np.testing.assert_allclose(np.load(target), want, atol=1e-5)


def test_another_input_or_model_starts_afresh(model, tmp_path):
    source, target = tmp_path / "in.txt", tmp_path / "out.npy"
    source.write_text("one\ntwo two\n")
    job = Job(source, target, "a")
    job.part.write_bytes(np.full((1, 32), 9.0, np.float32).tobytes())
    job.state.write_text(json.dumps({"rows": 1, "fingerprint": Job(source, target, "b").fingerprint()}))
    encoder = Encoder(model, Words())
    embed_file(encoder, job)
    np.testing.assert_allclose(np.load(target), encoder(["one", "two two"]), atol=1e-5)


def test_what_cannot_be_done_is_said(model, tmp_path):
    encoder = Encoder(model, Words())
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a"}\n{"other": 1}\n')
    for job, says in (
        (Job(source, tmp_path / "x.csv", "a"), ".npy or .parquet"),
        (Job(tmp_path / "none", tmp_path / "x.npy", "a"), "no such file"),
        (Job(source, tmp_path / "x.npy", "a"), "line 2"),
        (Job(source, source / "y" / "x.npy", "a"), "cannot write"),
    ):
        with pytest.raises(HeadwayError, match=says):
            embed_file(encoder, job)
    for wrong in ({"pooling": "max"}, {"budget": 0}):
        with pytest.raises(InputError):
            Encoder(model, **wrong)
    with pytest.raises(InputError, match="tokenizer"):
        Encoder(model)(["text"])
