"""What a proof between two ranks proves, and what it does not pass for."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from yoked.ranks.proof import NONCE_BYTES, Claim

SECRETS = st.binary(min_size=32, max_size=32)
NONCES = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)
RANKS = st.integers(0, 2**20)
CLAIMS = st.builds(
    Claim,
    launch=st.text(max_size=20),
    group=st.text(max_size=20),
    size=RANKS,
    sender=RANKS,
    receiver=RANKS,
    sender_nonce=NONCES,
    receiver_nonce=NONCES,
)


@given(CLAIMS, SECRETS)
def test_who_knows_the_secret_proves_it(claim: Claim, secret: bytes) -> None:
    assert claim.is_proved_by(claim.proof(secret), secret)


@given(CLAIMS, SECRETS, SECRETS)
def test_another_secret_proves_nothing(claim: Claim, secret: bytes, other: bytes) -> None:
    assume(secret != other)

    assert not claim.is_proved_by(claim.proof(other), secret)


@given(CLAIMS, SECRETS)
def test_a_proof_that_is_sent_back_proves_nothing(claim: Claim, secret: bytes) -> None:
    assume(claim.sender != claim.receiver)
    theirs = dataclasses.replace(
        claim,
        sender=claim.receiver,
        receiver=claim.sender,
        sender_nonce=claim.receiver_nonce,
        receiver_nonce=claim.sender_nonce,
    )

    assert not theirs.is_proved_by(claim.proof(secret), secret)


@given(CLAIMS, CLAIMS, SECRETS)
def test_a_proof_of_anything_else_proves_nothing(one: Claim, other: Claim, secret: bytes) -> None:
    assume(one != other)

    assert not one.is_proved_by(other.proof(secret), secret)


@given(CLAIMS, SECRETS, st.data())
def test_one_field_that_differs_is_enough(claim: Claim, secret: bytes, data: Any) -> None:
    name = data.draw(st.sampled_from([field.name for field in dataclasses.fields(Claim)]))
    value = getattr(claim, name)
    drawn = {int: RANKS, bytes: NONCES, str: st.text(max_size=20)}[type(value)]
    other = dataclasses.replace(claim, **{name: data.draw(drawn)})
    assume(other != claim)

    assert not other.is_proved_by(claim.proof(secret), secret)


@given(CLAIMS, SECRETS, st.binary(max_size=64))
def test_bytes_of_any_length_are_no_proof(claim: Claim, secret: bytes, words: bytes) -> None:
    assume(words != claim.proof(secret))

    assert not claim.is_proved_by(words, secret)


def test_text_that_moves_from_one_field_to_the_next_is_another_claim() -> None:
    claim = Claim("ab", "c", 2, 0, 1, bytes(32), bytes(32))
    moved = dataclasses.replace(claim, launch="a", group="bc")

    assert claim.proof(b"s") != moved.proof(b"s")
