"""ELFI's rejection with its regression adjustment within a budget: arguments model, budget, seed.

Summaries are scaled by their standard deviations among a twentieth of the budget. Of the rest, the nearest fifth (with
1,000 simulations) or tenth is adjusted.
"""

import json
import os
import sys
import time
import warnings

import elfi
import numpy as np

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from benchmarks.simulators import OBSERVED, PRIORS, SIMULATORS

warnings.simplefilter("ignore")


def main(name, budget, seed, quantile):
    simulate, names = SIMULATORS[name], list(PRIORS[name])

    def rows(*theta, batch_size=1, random_state=None):
        columns = {key: np.asarray(value) for key, value in zip(names, theta)}  # noqa: B905
        return simulate(random_state, **columns)

    began = time.process_time()
    model = elfi.ElfiModel()
    priors = [elfi.Prior(kind, *rest, model=model, name=key) for key, (kind, *rest) in PRIORS[name].items()]
    elfi.Simulator(rows, *priors, observed=np.array([OBSERVED[name]]), model=model, name="rows")
    pilot = budget // 20
    spread = model.generate(pilot, ["rows"], seed=seed + 1000)["rows"].std(axis=0)
    summaries = [
        elfi.Summary(lambda y, k=k: y[:, k] / spread[k], model["rows"], model=model, name=f"s{k}")
        for k in range(len(spread))
    ]
    distance = elfi.Distance("euclidean", *summaries, model=model, name="distance")
    method = elfi.Rejection(distance, batch_size=(budget - pilot) // 10, seed=seed,
                            output_names=[one.name for one in summaries])  # fmt: skip
    sample = method.sample(int(quantile * (budget - pilot)), n_sim=budget - pilot, bar=False)
    found = elfi.adjust_posterior(sample, model, [one.name for one in summaries], parameter_names=names)
    seconds = time.process_time() - began
    theta = np.column_stack([found.outputs[key] for key in names])
    answer = {"mean": theta.mean(axis=0).tolist(), "sd": theta.std(axis=0).tolist()}
    print(json.dumps({**answer, "simulations": int(sample.n_sim) + pilot, "seconds": seconds,
                      "version": elfi.__version__}))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), 0.2 if int(sys.argv[2]) <= 1_000 else 0.1)
