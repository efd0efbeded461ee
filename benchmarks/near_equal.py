"""Why LIB misses parts of planted networks that do not touch: features of nearly equal Λ mix.

    python benchmarks/near_equal.py

In the first layer the inputs' true covariance is 1 and that of n samples 1 + E with entries of variance 1/n.
To first order in E a feature i takes in feature j of another part with the coefficient
E_ij λ_j / (λ_i − λ_j), so that the share it loses should be Σ_j (λ_j / (λ_i − λ_j))² / n, over the features j
of other parts.
"""

import numpy as np
import torch
from scipy.stats import spearmanr

import interbasis
from interbasis_studies.known import PlantedSpec, plant

torch.set_num_threads(1)
for samples in (1000, 4000, 16000, 64000):
    expected, lost = [], []
    for seed in range(5):
        known = plant(PlantedSpec(samples=samples), seed)
        layer = interbasis.build(known.network, known.inputs, edge_method=None, progress=False).graph.layers[
            0
        ]
        shares = known.truth.shares(0, layer.transform[1:])
        part, values = shares.argmax(1), layer.eigenvalues[1:]
        ratio = (values[None] / (values[:, None] - values[None])).square() / samples
        other = part[:, None] != part[None]
        expected += torch.where(other, ratio, 0.0).sum(1).tolist()
        lost += (1 - shares.amax(1)).tolist()
    expected, lost = np.array(expected), np.array(lost)
    apart = expected < 0.01
    print(
        f"{samples:6,} samples: share lost {lost.mean():.3f}; features whose Λ are far from those of other "
        f"parts (expected loss below 0.01): {apart.mean():.2f} of all, they lose {lost[apart].mean():.4f} "
        f"(expected {expected[apart].mean():.4f}), the others {lost[~apart].mean():.3f}; rank correlation "
        f"{spearmanr(expected, lost).statistic:.2f}",
        flush=True,
    )
