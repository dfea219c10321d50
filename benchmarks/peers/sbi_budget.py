"""sbi's neural posterior estimation, one round with its default network: arguments model, budget, seed.

torch is kept to one thread, which is faster than two on a machine that does other work.
"""

import json
import logging
import os
import sys
import time
import warnings

import numpy as np
import sbi
import torch
from sbi.inference import NPE
from sbi.utils import MultipleIndependent
from torch.distributions import LogNormal, Normal, Uniform

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from benchmarks.simulators import OBSERVED, PRIORS, SIMULATORS

logging.disable(logging.INFO)
warnings.simplefilter("ignore")
DRAWS = 10_000
DISTRIBUTIONS = {
    "norm": lambda mean, sd: Normal(torch.tensor([float(mean)]), torch.tensor([float(sd)])),
    "uniform": lambda low, width: Uniform(torch.tensor([float(low)]), torch.tensor([float(low + width)])),
    "lognorm": lambda shape, _, scale: LogNormal(torch.tensor([np.log(scale)]), torch.tensor([float(shape)])),
}


def main(name, budget, seed):
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    began = time.process_time()
    prior = MultipleIndependent([DISTRIBUTIONS[kind](*rest) for kind, *rest in PRIORS[name].values()])
    theta = prior.sample((budget,)).float()
    columns = dict(zip(PRIORS[name], theta.numpy().astype(float).T))  # noqa: B905
    rows = SIMULATORS[name](np.random.default_rng(seed), **columns)
    inference = NPE(prior, show_progress_bars=False)
    inference.append_simulations(theta, torch.tensor(rows, dtype=torch.float32)).train()
    posterior = inference.build_posterior()
    observed = torch.tensor([OBSERVED[name]], dtype=torch.float32)
    drawn = posterior.sample((DRAWS,), x=observed, show_progress_bars=False).numpy().astype(float)
    seconds = time.process_time() - began
    answer = {"mean": drawn.mean(axis=0).tolist(), "sd": drawn.std(axis=0).tolist()}
    print()  # sbi has left a line open
    print(json.dumps({**answer, "simulations": budget, "seconds": seconds, "version": sbi.__version__}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
