"""Each pair of ranks proves to each other that both know the secret of the launch.

Whoever dials a port of Gloo's while ranks connect, and guesses a small number, has a rank's seat
there (gloo/transport/tcp/listener.cc). So nothing else is sent over a connection before this:

    both say hello       whether they have a secret, and 32 random bytes (the nonce)
    both prove it        HMAC-SHA256 (RFC 2104) keyed with the secret, over the launch, the group,
                         its size, sender and receiver, and both nonces

What is proved in one direction is no proof in the other, for other ranks or at another time.
"""

from __future__ import annotations

import hmac
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from yoked.errors import MeetingError

NONCE_BYTES = 32
# A rank that connected is here within a second; a laptop that swaps takes longer.
DEADLINE_S = 30.0
# Above all tags that `Communicator` gives to messages.
PROOF_TAG = 900_000
_LABEL = b"yoked: ranks of one launch, 1"
_NO_SECRET, _HAS_SECRET = 0, 1
_STRANGER = (
    "if it comes back: somebody dials the ports at which ranks connect; a firewall that lets in "
    "the hosts of the fleet alone keeps strangers out (docs/concepts/security.md)"
)
_UNLIKE = (
    "ranks that torchrun starts need the same text in YOKED_SECRET on all hosts; to compare: "
    "printf %s $YOKED_SECRET | sha256sum | cut -c 1-8"
)


@dataclass(frozen=True)
class Claim:
    """What one rank proves to another.

    launch: the id of this start; group: which of its process groups connected; ranks are global.
    """

    launch: str
    group: str
    size: int
    sender: int
    receiver: int
    sender_nonce: bytes
    receiver_nonce: bytes

    def proof(self, secret: bytes) -> bytes:
        """32 bytes that only who knows the secret can make."""
        parts = (
            _LABEL,
            self.launch.encode(),
            self.group.encode(),
            *(number.to_bytes(8, "big") for number in (self.size, self.sender, self.receiver)),
            self.sender_nonce,
            self.receiver_nonce,
        )
        # With their lengths: no two claims are the same bytes.
        message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(secret, message, "sha256")

    def is_proved_by(self, proof: bytes, secret: bytes) -> bool:
        """Whether who sent this knows the secret. Takes as long for any proof."""
        return hmac.compare_digest(self.proof(secret), proof)


def prove_ranks(
    secret: bytes | None,
    launch: str,
    *,
    group: dist.ProcessGroup | None = None,
    name: str = "the default group",
    deadline_s: float = DEADLINE_S,
) -> None:
    """Return when every other rank of the group has proved the secret to this one.

    secret: None passes if no rank has one. group: a Gloo group; None is the default one. name:
    the same on all its ranks.
    Collective: all its ranks call this before they send anything else. Traffic a rank: 65 (N-1)
    bytes in two rounds. Raises MeetingError.
    """
    _Meeting(secret, launch, group, name, deadline_s).hold()


class _Meeting:
    """One rank's part in the proofs of a group."""

    def __init__(
        self,
        secret: bytes | None,
        launch: str,
        group: dist.ProcessGroup | None,
        name: str,
        deadline_s: float,
    ) -> None:
        self._secret, self._launch, self._group, self._name = secret, launch, group, name
        self._deadline_s = deadline_s
        self._until_s = time.monotonic() + deadline_s
        self._own = dist.get_rank()
        self._ranks: list[int] = dist.get_process_group_ranks(group)
        self._others = [rank for rank in self._ranks if rank != self._own]

    def hold(self) -> None:
        has = _NO_SECRET if self._secret is None else _HAS_SECRET
        nonces = {rank: secrets.token_bytes(NONCE_BYTES) for rank in self._others}
        hellos = self._swap({rank: bytes([has]) + nonce for rank, nonce in nonces.items()})
        for rank, hello in hellos.items():
            self._require_alike(rank, hello[0])
        if self._secret is None:
            return
        theirs = {rank: hello[1:] for rank, hello in hellos.items()}
        proofs = self._swap(
            {
                rank: self._claim(self._own, rank, nonces[rank], theirs[rank]).proof(self._secret)
                for rank in self._others
            }
        )
        for rank, proof in proofs.items():
            claim = self._claim(rank, self._own, theirs[rank], nonces[rank])
            if not claim.is_proved_by(proof, self._secret):
                raise MeetingError(
                    f"rank {rank} did not prove that it belongs to this launch: its secret is "
                    "another one, or it is a stranger. Nothing was sent to it",
                    fix=(_UNLIKE, _STRANGER),
                )

    def _claim(self, sender: int, receiver: int, sent: bytes, received: bytes) -> Claim:
        return Claim(self._launch, self._name, len(self._ranks), sender, receiver, sent, received)

    def _require_alike(self, rank: int, has: int) -> None:
        if (has == _HAS_SECRET) == (self._secret is not None):
            return
        without, with_one = (self._own, rank) if self._secret is None else (rank, self._own)
        raise MeetingError(
            f"rank {without} has no secret, and rank {with_one} has one: they cannot prove to "
            "each other that they belong to one launch. Nothing was sent",
            fix=(_UNLIKE, _STRANGER),
        )

    def _swap(self, words: dict[int, bytes]) -> dict[int, bytes]:
        """Send a word to each other rank, all at once; theirs by rank, as long as ours.

        Both sides are through with a round before either judges it: so a rank that then leaves
        does not take its word with it.
        """
        arriving = {rank: torch.zeros(len(word), dtype=torch.uint8) for rank, word in words.items()}
        leaving = {
            rank: torch.tensor(list(word), dtype=torch.uint8) for rank, word in words.items()
        }
        works: list[tuple[int, Any]] = []
        for start, tensors in ((dist.irecv, arriving), (dist.isend, leaving)):
            for rank, tensor in tensors.items():
                try:
                    works.append((rank, start(tensor, rank, group=self._group, tag=PROOF_TAG)))
                except RuntimeError as problem:
                    raise self._broken(rank, problem) from problem
        for rank, work in works:
            self._wait(rank, work)
        return {rank: bytes(tensor.tolist()) for rank, tensor in arriving.items()}

    def _wait(self, rank: int, work: Any) -> None:
        # For Gloo a wait of 0 has no end.
        left_s = max(self._until_s - time.monotonic(), 0.001)
        try:
            work.wait(timedelta(seconds=left_s))
        except RuntimeError as problem:
            if time.monotonic() < self._until_s:
                raise self._broken(rank, problem) from problem
            raise MeetingError(
                f"rank {rank} did not prove within {self._deadline_s:.0f} s that it belongs to "
                "this launch: it hangs, or a stranger holds its place. Nothing was sent to it",
                fix=_STRANGER,
            ) from problem

    def _broken(self, rank: int, problem: RuntimeError) -> MeetingError:
        return MeetingError(
            f"a peer was lost in the proof of the secret, rank {rank}: {first_line(problem)}",
            fix=("look at the logs of the other ranks for the first failure", _STRANGER),
        )


def first_line(problem: BaseException) -> str:
    """What an exception says, without the lines of C++ that follow."""
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0]
