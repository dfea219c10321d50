"""ELFI's sequential sampler on the toy, with a vectorised simulator: arguments eps, y_obs, samples, seed."""

import json
import sys
import time

import elfi


def simulate(theta, batch_size=1, random_state=None):
    return theta + random_state.standard_normal(batch_size)


def main(eps, y_obs, samples, seed):
    steps = [eps]
    while steps[0] < y_obs / 2:
        steps.insert(0, 2 * steps[0])
    model = elfi.ElfiModel()
    theta = elfi.Prior("norm", 0, 1, model=model, name="theta")
    y = elfi.Simulator(simulate, theta, observed=y_obs, model=model, name="y")
    distance = elfi.Distance("euclidean", y, model=model, name="d")
    method = elfi.SMC(distance, batch_size=samples, seed=seed)
    began = time.perf_counter()
    result = method.sample(samples, steps, bar=False)
    seconds = time.perf_counter() - began
    drawn = [float(value) for value in result.samples["theta"]]
    weights = [float(value) for value in result.weights]
    print(json.dumps({"theta": drawn, "weights": weights, "simulations": int(result.n_sim), "seconds": seconds}))


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
