"""The inequalities of docs/theory.md as functions, and the certificate: what no other number of draws can gain.

Let a step with M pseudo-samples cost c_M steps with one, and gain(M) = v(f, Q_1)/(c_M v(f, Q_M)): how much cheaper M is
for the same accuracy. With kappa = v(f, Q_1)/v(f) of a run with one pseudo-sample,

    gain(M) <= (M/c_M) kappa/(kappa - M + 1)   for M < kappa + 1,
    gain(M) <= min(kappa, 2M - 1)/c_M          if Q_M >= 0.

kappa has an error. The first bound falls in kappa and takes its lower confidence limit; kappa/c_M takes the upper one.
Derivations: docs/theory.md, (★) and "The certificate". `paper/verify.py` checks these functions.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from onedraw.arguments import share, shown
from onedraw.failures import NoAnswer
from onedraw.results.efficiency import Function, checked_discount, step_cost
from onedraw.results.monte_carlo_error import Interval, Variances, interval, variances
from onedraw.results.posterior import Posterior, function_values

WORTH = 1.1
"""The smallest gain worth choosing M for: the certificate says up to which M none is larger."""
FARTHEST = 100_000
"""The largest M that is examined."""


# --- bounds (forms in f may be passed as matrices) ----------------------------------------------------------


def order_bound(v: Any) -> Any:
    """L2 and L6: the better chain has at most the variance of the worse one."""
    return v


def handicap_bound(alpha: float, v: Any) -> Any:
    """L3: v(f, H_1) ≤ (1 + α)/(1 − α)·v(f, H_2)."""
    return (1 + alpha) / (1 - alpha) * v


def one_draw_bound(pseudo_samples: int, v_many: Any) -> Any:
    """L4: v(f, Q_1) ≤ (2M − 1)·v(f, Q_M)."""
    return (2 * pseudo_samples - 1) * v_many


def running_time_bound(time_many: Any) -> Any:
    """L5: one pseudo-sample takes at most twice the time."""
    return 2 * time_many


def star_bound(pseudo_samples: int, v_many: Any, v: Any) -> Any:
    """(★): v(f, Q_1) ≤ M·v(f, Q_M) + (M − 1)·v(f), with or without positivity."""
    return pseudo_samples * v_many + (pseudo_samples - 1) * v


def gain_bound(kappa: float, pseudo_samples: int, cost: float) -> float:
    """The certificate without positivity, for M < κ + 1; nothing is known beyond.

    >>> round(gain_bound(200.0, 10, 10.0), 4)
    1.0471
    """
    room = kappa - pseudo_samples + 1
    return pseudo_samples / cost * kappa / room if room > 0 else math.inf


def gain_bounds_nonnegative(kappa: float, pseudo_samples: int, cost: float) -> tuple[float, float]:
    """The certificate's two further bounds if Q_M ≥ 0."""
    return kappa / cost, (2 * pseudo_samples - 1) / cost


def gain_bound_discount(discount: float) -> float:
    """What no M can gain at the nominal cost 1 + (M − 1)/δ."""
    return 2 * discount


def kappa_floor(pseudo_samples: int, measured: Mapping[int, float], positive: bool) -> float:
    """A number below which kappa of Q_M cannot lie, from lower limits of kappa measured at other M.

    With more draws (M'' >= M) v only falls (L2). With fewer (M' <= M), Q_M is no better than the chain whose estimate
    averages k = ceil(M/M') copies of that of Q_M', to which (★) applies: kappa_M' <= k kappa_M + k - 1. And kappa >= 1
    if Q_M >= 0.
    """
    floor = 1.0 if positive else 0.0
    for count, kappa in measured.items():
        if count >= pseudo_samples:
            floor = max(floor, kappa)
        else:
            copies = -(-pseudo_samples // count)
            floor = max(floor, (kappa - copies + 1) / copies)
    return floor


# --- the certificate ----------------------------------------------------------------------------------------


class Bound(NamedTuple):
    """The most that M pseudo-samples could gain over one, over all functions."""

    pseudo_samples: int
    cost: float
    gain: float


@dataclass(frozen=True)
class Certificate:
    """What no other M can gain over one pseudo-sample, from the kappas of a run with M = 1; printed in plain words.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.pseudo_marginal(model, od.uniform(0.25), draws=1_000, chains=64, seed=1)
    >>> found = od.certificate(post)
    >>> found.gain(1), found.gain(2) < 1.2
    (1.0, True)
    """

    kappa: dict[str, Interval]
    """For each function, its interval at `confidence`, shared out over the functions."""
    confidence: float
    discount: float | None
    """None if the costs were measured."""
    nonnegative: bool
    """Whether Q_M >= 0 is known."""
    cost: Callable[[int], float]
    certified: int
    """No M up to here gains more than a factor `worth`; 1 if nothing is certified."""
    nothing_from: int | None
    """From this M on nothing gains more than `worth` (only if Q_M >= 0 is known)."""
    largest: Bound
    """The M for which the bound is largest, and the bound: infinite if kappa says nothing about some M."""
    worth: float = WORTH

    def gain(self, pseudo_samples: int) -> float:
        """The largest gain that M pseudo-samples could bring, over all functions."""
        return bounded(self.kappa, pseudo_samples, self.cost, self.nonnegative).gain

    def __str__(self) -> str:
        kappas = "; ".join(f"{name} {kappa}" for name, kappa in self.kappa.items())
        lines = [f"kappa with {100 * self.confidence:g} % confidence: {kappas}"]
        percent = round(100 * (self.worth - 1))
        if self.certified > 1:
            lines.append(
                f"pseudo_samples=1 is certified against every M <= {self.certified}: none gains more than {percent} %"
            )
        else:
            lines.append(f"no M > 1 is certified to gain less than {percent} %")
        if self.nothing_from is not None and self.nothing_from > self.certified + 1:
            lines.append(f"from M = {self.nothing_from} on none can gain more than {percent} % either")
        if math.isinf(self.largest.gain):
            lines.append(
                "how much M in between could gain is not known: Q_M >= 0 is not known for this proposal (od.lazy, "
                "od.independence and Gaussian random walks have it)"
            )
        else:
            lines.append(
                f"no M at all can gain more than {self.largest.gain:.3g} x (at M = {self.largest.pseudo_samples})"
            )
        if self.discount is not None and self.discount != 1:
            lines.append(f"draws after the first at one theta are taken to cost 1/{self.discount:.4g}")
        return "\n".join(lines)

    __repr__ = __str__


def largest_gain(kappa: Interval, pseudo_samples: int, cost: float, positive: bool) -> float:
    """On the safe side: kappa's lower limit in the bound that falls with it, its upper limit in the one that rises."""
    bounds = [gain_bound(kappa.low, pseudo_samples, cost)]
    if positive:
        bounds += gain_bounds_nonnegative(kappa.high, pseudo_samples, cost)
    return min(bounds)


def bounded(kappas: Mapping[str, Interval], pseudo_samples: int, cost: Callable[[int], float], positive: bool) -> Bound:
    """The bound for one M, over all functions."""
    if pseudo_samples == 1:
        return Bound(1, 1.0, 1.0)
    price = cost(pseudo_samples)
    gain = max(largest_gain(kappa, pseudo_samples, price, positive) for kappa in kappas.values())
    return Bound(pseudo_samples, price, gain)


def certify(
    kappa: Mapping[str, Interval],
    *,
    cost: Callable[[int], float],
    positive: bool,
    confidence: float = 0.95,
    discount: float | None = None,
    worth: float = WORTH,
) -> Certificate:
    """The certificate from intervals for kappa (`low` and `high` are used) and the cost c_M of a step.

    >>> from onedraw.results.monte_carlo_error import exactly
    >>> found = certify({"theta": exactly(200.0)}, cost=float, positive=True)
    >>> found.certified, found.nothing_from, round(found.gain(2), 4)
    (19, 182, 1.005)
    """
    if not kappa or any(not part.low > 0 for part in kappa.values()):
        raise ValueError(f"kappa must have a lower confidence limit above 0 for every function, got {dict(kappa)}")
    reach = max(part.high for part in kappa.values()) if positive else max(part.low for part in kappa.values()) + 2
    bounds = [Bound(1, 1.0, 1.0)]
    last = _last_of_interest(reach, cost, worth)
    while len(bounds) < last and bounds[-1].gain < math.inf:
        bounds.append(bounded(kappa, len(bounds) + 1, cost, positive))
    worthwhile = [bound.pseudo_samples for bound in bounds if bound.gain > worth]
    ends = positive and bounds[-1].gain <= worth
    return Certificate(
        dict(kappa),
        confidence,
        discount,
        positive,
        cost,
        certified=worthwhile[0] - 1 if worthwhile else len(bounds),
        nothing_from=max([1, *worthwhile]) + 1 if ends else None,
        largest=max(bounds, key=lambda bound: bound.gain),
        worth=worth,
    )


def _last_of_interest(reach: float, cost: Callable[[int], float], worth: float) -> int:
    """An M beyond which kappa/c_M is too small to matter; costs rise with M."""
    m = 2
    while m < FARTHEST and reach / cost(m) > worth:
        m *= 2
    return min(FARTHEST, max(m, math.ceil(min(reach, FARTHEST)) + 2))


def shared_confidence(confidence: float, functions: int) -> float:
    """The confidence of each interval so that all of them hold together with the one asked for (Bonferroni)."""
    return 1 - (1 - confidence) / functions


def joint_kappas(found: Mapping[str, Variances], confidence: float) -> dict[str, Interval]:
    """kappa of each function with intervals that hold together; those without an estimate as they are."""
    each = shared_confidence(confidence, len(found))
    return {
        name: one.kappa if one.reason else interval(one.kappa.value, one.kappa.se, one.degrees, each)
        for name, one in found.items()
    }


def certificate(
    post: Posterior,
    discount: float = 1.0,
    confidence: float = 0.95,
    *,
    functions: Mapping[str, Function] | None = None,
) -> Certificate:
    """An upper bound on the gain from any other number of pseudo-samples, from a run of `od.pseudo_marginal` with one.

    Parameters
    ----------
    post
        A run of Algorithm 2 with pseudo_samples=1 and thin=1, without weights.
    discount
        delta: draws after the first at one theta cost 1/delta, so that a step costs c_M = 1 + (M - 1)/delta. Early
        rejection between draws of plain simulators is a discount too, which `od.advise` measures.
    confidence
        Joint confidence of the intervals of all kappas.
    functions
        As in `efficiency`; by default the parameters.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.pseudo_marginal(model, od.uniform(0.25), draws=1_000, chains=64, seed=1)
    >>> od.certificate(post).certified > 1
    True
    """
    _check_run(post)
    discount = checked_discount(discount)
    confidence = share("confidence", confidence, "the confidence of all intervals together")
    found = {name: variances(along) for name, along in function_values(post, functions).items()}
    kappas = joint_kappas(found, confidence)
    for name, one in found.items():
        if one.reason and not kappas[name].low > 0:
            raise NoAnswer(f"no certificate: kappa of {name} cannot be estimated ({one.reason}); run longer chains")
    return certify(
        kappas,
        cost=lambda pseudo_samples: step_cost(pseudo_samples, discount),
        positive=known_nonnegative(post),
        confidence=confidence,
        discount=discount,
    )


def known_nonnegative(post: Posterior) -> bool:
    """Whether Q_M >= 0 is known for the chains of a run, from the type of its proposal."""
    return (post.settings.get("proposal") or {}).get("nonnegative") is True


def _check_run(post: Any) -> None:
    if not isinstance(post, Posterior):
        raise ValueError(f"post must be the Posterior of a run of od.pseudo_marginal, got {shown(post)}")
    settings = post.settings
    if settings.get("algorithm") != "pseudo_marginal":
        raise ValueError(f"a certificate needs a run of od.pseudo_marginal, got one of {settings.get('algorithm')}")
    wrong = [(name, settings.get(name)) for name in ("pseudo_samples", "thin") if settings.get(name, 1) != 1]
    if wrong:
        name, value = wrong[0]
        raise ValueError(f"a certificate needs a run with {name}=1, got {value}: kappa must be that of Q_1 itself")
    if post.weights is not None:
        raise ValueError("a certificate is for a chain at its own eps: use the run before at(eps)")
    if post.model is None:
        raise ValueError("a certificate needs a run with a model and a kernel: this one used an estimator of its own")
