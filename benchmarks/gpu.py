"""The JAX engine on one GPU: python -m benchmarks gpu, or python -m benchmarks.gpu --help. Needs the extra `jax`.

Absolute speeds, since a GPU is a machine of one's own; hand-written loops in the same run stand beside them.
"""

import argparse
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import stats

import onedraw as od
from benchmarks.timing import report
from onedraw.engines import jax_draws

EPS, Y_OBS = 0.5, 2.0


def toy(normal) -> od.Model:
    simulate = od.jax_simulator(lambda key, theta: theta + normal(key, dtype=theta.dtype))
    return od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=Y_OBS)


def by_hand(chains, pseudo_samples, thin, kept):
    """The chain as one would write it in JAX: draws in bulk, one step in `thin` recorded."""

    def step(number, carry):
        theta, log_estimate, moves, key = carry
        first, second, third = jax.random.split(jax.random.fold_in(key, number), 3)
        proposed = jax.random.normal(first, (chains,))
        noise = jax.random.normal(second, (pseudo_samples, chains))
        log_new = jnp.log((jnp.abs(proposed + noise - Y_OBS) < EPS).mean(axis=0))
        moved = log_new >= log_estimate - jax.random.exponential(third, (chains,))
        return jnp.where(moved, proposed, theta), jnp.where(moved, log_new, log_estimate), moves + moved, key

    @jax.jit
    def run(carry):
        def keep(carry, number):
            carry = lax.fori_loop(0, thin, lambda k, inner: step(number * thin + k, inner), carry)
            return carry, carry[0]

        return lax.scan(keep, carry, jnp.arange(kept))

    start = jnp.ones(chains), jnp.zeros(chains), jnp.zeros(chains, jnp.int32), jax.random.key(1)
    # The draws are wanted here, as those of a Posterior are.
    return lambda: np.asarray(run(start)[1])


def seconds_of(job, repeats=2):
    job()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        job()
        times.append(time.perf_counter() - began)
    return min(times)


NORMALS = {"jax.random.normal": jax.random.normal, "jax_draws.normal": jax_draws.normal}


def chains(small):
    """Pseudo-samples per second through the public API, starts and all, recording one step in a thousand."""
    rows = []
    for pseudo_samples, side_by_side, kept in ((64, 2**17, 64), (1, 2**20, 128)):
        thin = 1000
        if small:
            side_by_side, kept, thin = 2**10, 2, 50
        settings = {
            "chains": side_by_side, "draws": kept, "thin": thin, "pseudo_samples": pseudo_samples, "seed": 1,
            "proposal": od.independence(), "keep": "draws", "progress": False,
        }  # fmt: skip
        work = side_by_side * kept * thin * pseudo_samples
        hand = seconds_of(by_hand(side_by_side, pseudo_samples, thin, kept))
        rows.append((f"M = {pseudo_samples}, by hand: pseudo-samples per second", f"{work / hand:.3g}", "", None))
        for name, normal in NORMALS.items():
            model = toy(normal)
            api = seconds_of(lambda m=model, s=settings: od.pseudo_marginal(m, od.uniform(EPS), **s))
            speed, share = work / api, hand / api
            many, ours = pseudo_samples == 64, normal is jax_draws.normal
            wanted = ">= 2e11" if many and ours else "" if many else ">= 0.95"
            reached = None if small or not wanted else speed >= 2e11 if many else share >= 0.95
            label = f"M = {pseudo_samples}, {name}: pseudo-samples per second"
            rows.append((label, f"{speed:.3g}", wanted if many else "", reached if many else None))
            label = f"M = {pseudo_samples}, {name}: of the hand-written loop"
            rows.append((label, f"{share:.2f}", "" if many else wanted, None if many else reached))
    return report("Chains on the toy, one step in a thousand recorded", rows)


def all_points(tasks):
    from onedraw.paper.tasks import do

    return [do(task) for task in tasks]


def study(small, figures, workers):
    """The points of these figures of the study, the second time, when every program is compiled."""
    from onedraw.paper.study import run
    from onedraw.paper.tasks import do, processes

    iterations = 300_000 if small else 5_000_000
    plan = run.StudyPlan(iterations=iterations, engine="jax", figures=tuple(figures))
    tasks = run.point_tasks(plan)
    with processes(workers, device=True) as pool:
        began = time.perf_counter()
        # Each process does every point once, and begins with others, so that they compile for each other.
        begins = [len(tasks) * k // workers for k in range(workers)]
        list(pool.map(all_points, [tasks[begin:] + tasks[:begin] for begin in begins]))
        print(f"  study, {workers} processes, each compiling all: {time.perf_counter() - began:.1f} s", flush=True)
        for _ in range(3):
            began = time.perf_counter()
            outcomes = list(pool.map(do, tasks))
            seconds = time.perf_counter() - began
            print(f"  study, after compilation: {len(outcomes)} points, {seconds:.2f} s", flush=True)
    agreed = run.agreement([one for one in outcomes if isinstance(one, run.SimulatedPoint)])
    rows = [
        (f"{iterations:,} iterations per point, seconds", f"{seconds:.2f}", "< 5", None if small else seconds < 5),
        ("points within 4 standard errors", f"{agreed.within_4} of {agreed.points}", "all", agreed.fine),
        ("chi-squared", f"{agreed.chi_squared:.1f}", "", None),
    ]
    return report(f"The study: figures {', '.join(figures)}", rows)


STEPS, TAU = 200, 0.05


def lotka_volterra():
    """Tau-leaping predators and prey; every tenth state is observed."""

    def on_jax(key, birth, eat, death):
        def leap(state, key):
            prey, hunters = state
            rates = jnp.stack([birth * prey, eat * prey * hunters, death * hunters]) * TAU
            born, eaten, dead = jax_draws.poisson(key, rates).astype(birth.dtype)
            prey, hunters = jnp.maximum(prey + born - eaten, 0.0), jnp.maximum(hunters + eaten - dead, 0.0)
            return (prey, hunters), jnp.stack([prey, hunters])

        begin = jnp.asarray(50.0, birth.dtype), jnp.asarray(100.0, birth.dtype)
        return lax.scan(leap, begin, jax.random.split(key, STEPS))[1][9::10]

    def on_one_core(rng, birth, eat, death):
        prey, hunters = 50.0, 100.0
        kept = np.empty((STEPS // 10, 2))
        for step in range(STEPS):
            born = rng.poisson(birth * prey * TAU)
            eaten = rng.poisson(eat * prey * hunters * TAU)
            dead = rng.poisson(death * hunters * TAU)
            prey, hunters = max(prey + born - eaten, 0.0), max(hunters + eaten - dead, 0.0)
            if step % 10 == 9:
                kept[step // 10, 0], kept[step // 10, 1] = prey, hunters
        return kept

    prior = od.Prior(birth=stats.uniform(0.3, 0.4), eat=stats.uniform(0.002, 0.001), death=stats.uniform(0.2, 0.2))
    observed = on_one_core(np.random.default_rng(1), 0.5, 0.0025, 0.3)
    return prior, {"jax": od.jax_simulator(on_jax), "numba": od.compiled(on_one_core)}, observed, 50.0, 100.0


SIDE, DAYS = 64, 50


def epidemic():
    """Susceptible and infected cells of a 64 x 64 torus; every tenth day, infected cells and infected neighbours."""
    first = np.zeros((SIDE, SIDE))
    first[24:40, 24:40] = 1.0

    def on_jax(key, infect, recover):
        def day(ill, key):
            near = sum(jnp.roll(ill, shift, axis) for shift in (-1, 1) for axis in (0, 1))
            u = jax.random.uniform(key, ill.shape, infect.dtype)
            # Of k infected neighbours none infects with probability (1 - infect)^k.
            spared = jnp.exp(near * jnp.log1p(-infect))
            ill = jnp.where(ill > 0, u >= recover, u >= spared).astype(infect.dtype)
            return ill, jnp.stack([ill.mean(), (ill * jnp.roll(ill, 1, 0)).mean()])

        return lax.scan(day, jnp.asarray(first, infect.dtype), jax.random.split(key, DAYS))[1][9::10]

    def on_one_core(rng, infect, recover):
        ill, kept = first.copy(), np.empty((DAYS // 10, 2))
        tomorrow = np.empty_like(ill)
        spared = np.array([1.0, 1 - infect, (1 - infect) ** 2, (1 - infect) ** 3, (1 - infect) ** 4])
        for day in range(DAYS):
            for i in range(SIDE):
                for j in range(SIDE):
                    if ill[i, j] > 0:
                        tomorrow[i, j] = rng.random() >= recover
                    else:
                        near = ill[i - 1, j] + ill[(i + 1) % SIDE, j] + ill[i, j - 1] + ill[i, (j + 1) % SIDE]
                        tomorrow[i, j] = near > 0 and rng.random() >= spared[int(near)]
            ill, tomorrow = tomorrow, ill
            if day % 10 == 9:
                both = 0.0
                for i in range(SIDE):
                    for j in range(SIDE):
                        both += ill[i, j] * ill[i - 1, j]
                kept[day // 10, 0], kept[day // 10, 1] = ill.mean(), both / SIDE**2
        return kept

    prior = od.Prior(infect=stats.uniform(0.1, 0.3), recover=stats.uniform(0.1, 0.3))
    observed = on_one_core(np.random.default_rng(1), 0.2, 0.2)
    return prior, {"jax": od.jax_simulator(on_jax), "numba": od.compiled(on_one_core)}, observed, 0.1, 100.0


def g_and_k():
    """A thousand draws of a g-and-k distribution, summed up by seven quantiles."""
    at = np.array([62, 125, 250, 375, 500, 625, 750, 875, 937])

    def quantiles(z, a, b, g, k, xp):
        return a + b * (1 + 0.8 * xp.tanh(g * z / 2)) * (1 + z * z) ** k * z

    def on_jax(key, a, b, g, k):
        z = jax.random.normal(key, (1000,), a.dtype)
        return jnp.sort(quantiles(z, a, b, g, k, jnp))[at]

    @od.batched
    def on_numpy(rng, a, b, g, k):
        z = rng.standard_normal((a.size, 1000))
        return np.sort(quantiles(z, *(one[:, None] for one in (a, b, g, k)), np), axis=1)[:, at]

    prior = od.Prior(a=stats.uniform(0, 5), b=stats.uniform(0.1, 5), g=stats.uniform(0, 5), k=stats.uniform(0, 1))
    observed = on_numpy(np.random.default_rng(1), *np.array([[3.0, 1.0, 2.0, 0.5]]).T)[0]
    return prior, {"jax": od.jax_simulator(on_jax), "numpy": on_numpy}, observed, 1.0, None


MODELS = {
    "Lotka-Volterra, 200 leaps": lotka_volterra, "64 x 64 epidemic, 50 days": epidemic, "g-and-k, n = 1000": g_and_k,
}  # fmt: skip


def real_models(small):
    """Simulations per second of Algorithm 1, and of one core of this machine, by loops in Numba or arrays in NumPy."""
    rows = []
    for name, made in MODELS.items():
        prior, simulators, observed, eps, target = made()
        speeds = {}
        for engine, simulator in simulators.items():
            model = od.Model(prior, simulator, observed)
            budget = {"jax": 2**19 if made is epidemic else 2**22, "numba": 2**12, "numpy": 2**14}[engine]
            budget = 2**10 if small else budget
            options = {"budget": budget, "seed": 1, "progress": False, **({} if engine == "jax" else {"workers": 1})}
            job = partial(od.rejection, model, od.uniform(eps), **options)
            speeds[engine] = budget / seconds_of(job, 1)
        other = next(engine for engine in speeds if engine != "jax")
        gain = speeds["jax"] / speeds[other]
        rows.append((f"{name}: simulations per second", f"{speeds['jax']:.3g}", "", None))
        label = f"{name}: times one core with {other} ({speeds[other]:.3g})"
        reached = None if small or target is None else gain >= target
        rows.append((label, f"{gain:.1f}", "" if target is None else f">= {target:.0f}", reached))
    return report("Models with real work, by rejection", rows)


def main(arguments: list[str] | None = None) -> bool:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a trial on any machine, which judges nothing")
    parser.add_argument("--figures", nargs="*", default=["1L", "1R", "2L", "2R"], help="of the study")
    parser.add_argument("--workers", type=int, default=8, help="processes that share the device in the study")
    parser.add_argument("--study-only", action="store_true", help="leave out the rest")
    given = parser.parse_args([] if arguments is None else arguments)
    print(f"JAX {jax.__version__} on {jax.devices()[0].device_kind}", flush=True)
    reached = [] if given.study_only else [chains(given.small), real_models(given.small)]
    return all([*reached, study(given.small, given.figures, given.workers)])


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
