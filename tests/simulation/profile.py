"""Plans and profiles of runs. Every kind of fault is on by default; the seed decides how strong each is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

# The quorums (E, Qw, Qa) of runs. With Qa = 1 no disk is lost, since only one copy is promised.
QUORUMS = (
    *((3, 3, 2),) * 3,
    *((2, 2, 2),) * 2,
    *((3, 2, 2),) * 2,
    (4, 3, 2),
    (5, 3, 2),
    (3, 3, 3),
    (3, 2, 1),
    (2, 2, 1),
)
FEATURES = ("seeks", "delays", "policies", "compactions", "folds")  # of the world of topics, each in some of the seeds
NUISANCES = (  # a plan may leave these out
    *("loss", "duplication", "straggler", "reply_loss_metadata", "bursts"),
    *FEATURES,
    "readers",
)
EPOCH_MS = 1_000_000_000_000  # on wall clocks, the beginning of a run with features
MESSAGES_MAX = 1_000_000
LEDGER = "ledger"  # ledgers, and a chain of them
TOPIC = "topic"  # a topic, with everything that a broker keeps for it
CLIENT = "client"  # a topic, which our own client uses over simulated connections
BOOKIE = "bookie"  # the storage of one bookie
DELETION = "deletion"  # topics and a namespace, which are deleted while clients use them
WORLDS = (LEDGER, TOPIC, CLIENT, BOOKIE, DELETION)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one run: all of a seed, or a part of it that shrinking chose.

    Args:
        seed: decides everything else.
        faults: numbers of the faults that happen, in the order of the seed's schedule; None for all of them.
        without: names of kinds of faults, and of ``NUISANCES``, that do not happen.
        until_ms: when faults end, in simulated milliseconds; None: the seed decides.
        messages_max: how many messages brokers take while there are faults.
        world: what is simulated, one of ``WORLDS``.
    """

    seed: int
    faults: frozenset[int] | None = None
    without: frozenset[str] = frozenset()
    until_ms: int | None = None
    messages_max: int = MESSAGES_MAX
    world: str = LEDGER

    def arguments(self) -> str:
        """Return the command-line arguments that replay this plan."""
        words = [f"--seed {self.seed}"]
        if self.world != LEDGER:
            words.append(f"--world {self.world}")
        if self.faults is not None:
            words.append(f"--faults {','.join(str(n) for n in sorted(self.faults)) or 'none'}")
        if self.without:
            names = ",".join(sorted(self.without))
            words.append(f"--without '{names}'" if " " in names else f"--without {names}")
        if self.until_ms is not None:
            words.append(f"--until {self.until_ms}")
        if self.messages_max != MESSAGES_MAX:
            words.append(f"--messages {self.messages_max}")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings of a run. Probabilities are per message or per occasion, times in milliseconds."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    bookies: int
    loss: float
    duplication: float
    delay_ms_max: int
    straggler: float  # messages that take very long
    straggler_ms_max: int
    reply_loss_metadata: float
    fault_every_ms: int
    faults_until_ms: int
    add_every_ms_max: int
    bursts: float
    ledger_entries_max: int
    rolls_early: bool  # the next ledger joins the list before the last one is closed
    ensemble_change_delay_ms: int
    sync_ms_max: int
    request_timeout_ms: int = 1_000
    messages_max: int = MESSAGES_MAX
    long_losses: bool = False  # bookies go away for long, and an auditor closes ledgers for that
    seeks: float = 0.0  # how often a consumer seeks, of its turns
    delays: float = 0.0  # of messages, which are to be delivered later
    delayed_tick_ms: int = 0
    policies: float = 0.0  # whether ages, retention and quotas change while the topic is used: 0 or 1
    compactions: float = 0.0  # how often a compaction begins, of a broker's rounds of upkeep
    deletions_kept_seconds: int = 0
    folds: float = 0.0  # whether ledgers and pieces of the chain are so small that it is folded: 0 or 1
    readers: float = 0.0  # whether readers follow the topic, whose cursors end with their connections: 0 or 1
    clients: bool = False  # our own client uses the topic
    ranges: bool = False  # writers send the adds of one moment in one frame, as to a bookie that knows that

    @classmethod
    def drawn(cls, random: Random) -> Profile:
        """Return the profile of a seed."""
        e, qw, qa = random.choice(QUORUMS)
        is_lossy = random.random() < 0.6
        return cls(
            ensemble_size=e,
            write_quorum=qw,
            ack_quorum=qa,
            bookies=e + random.choice((0, 1, 1, 2)),
            loss=random.choice((0.005, 0.02, 0.1)) if is_lossy else 0.0,
            duplication=random.choice((0.0, 0.02, 0.1)),
            delay_ms_max=random.choice((3, 20, 150)),
            straggler=random.choice((0.0, 0.01, 0.05)),
            straggler_ms_max=random.choice((500, 3_000)),
            reply_loss_metadata=random.choice((0.0, 0.05, 0.2)),
            fault_every_ms=random.choice((120, 300, 1_200)),
            faults_until_ms=random.choice((5_000, 12_000)),
            add_every_ms_max=random.choice((10, 60, 200, 800)),
            bursts=random.choice((0.0, 0.3, 1.0)),
            ledger_entries_max=random.choice((8, 30, 1_000)),
            rolls_early=random.random() < 0.5,
            ensemble_change_delay_ms=random.choice((0, 0, 500)),
            sync_ms_max=random.choice((4, 4, 40, 200)),
        )

    def with_features(self, random: Random) -> Profile:
        """Return the profile of a topic's run. Features have a randomness of their own: seeds without are as before."""
        seeks = random.choice((0.0, 0.0, 0.0, 0.1, 0.3))
        delays, tick_ms = random.choice((0.0, 0.0, 0.0, 0.2, 0.7)), random.choice((0, 0, 500))
        policies, folds = random.choice((0.0, 0.0, 0.0, 1.0)), random.choice((0.0, 0.0, 0.0, 1.0))
        compactions, kept_seconds = random.choice((0.0, 0.0, 0.0, 0.1, 0.4)), random.choice((3, 1_000))
        entries_max = random.choice((2, 5)) if folds else self.ledger_entries_max
        readers = random.choice((0.0, 0.0, 0.0, 1.0))
        return replace(
            self,
            seeks=seeks,
            delays=delays,
            delayed_tick_ms=tick_ms,
            policies=policies,
            compactions=compactions,
            deletions_kept_seconds=kept_seconds,
            folds=folds,
            readers=readers,
            ledger_entries_max=entries_max,
        )

    @property
    def has_upkeep(self) -> bool:
        """Whether brokers do the regular upkeep of the topic: expiry, trimming, compaction."""
        return bool(self.policies or self.compactions)

    @property
    def has_features(self) -> bool:
        """Whether topics are used in more ways than to publish and acknowledge."""
        return self.clients or any(getattr(self, name) for name in FEATURES)

    def wall_ms(self, now: int) -> int:
        """Return a time of the world on a wall clock. Without features only the order of times matters."""
        return now + EPOCH_MS if self.has_features else now

    @classmethod
    def of(cls, plan: Plan, random: Random) -> Profile:
        """Return the profile of a plan's seed, without what the plan leaves out."""
        profile = cls.drawn(random)
        if plan.world in (TOPIC, CLIENT):
            profile = profile.with_features(Random(f"{plan.seed}/features"))
        if plan.world == CLIENT:  # where each message reaches each subscription, in the order of the topic
            profile = replace(profile, clients=True, delays=0.0, policies=0.0, compactions=0.0, readers=0.0)
        if plan.until_ms is not None:
            profile = replace(profile, faults_until_ms=plan.until_ms)
        for name in plan.without.intersection(NUISANCES):
            profile = replace(profile, **{name: 0.0})  # type: ignore[arg-type]
        return replace(
            profile, messages_max=plan.messages_max, ranges=plan.seed % 2 == 1, long_losses=plan.seed % 5 == 3
        )

    @property
    def losable_bookies(self) -> int:
        """Return how many bookies may lose their data for good within what is promised."""
        return self.ack_quorum - 1
