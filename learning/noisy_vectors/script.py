"""The script that the card of published noisy vectors shows: how to train on them, in plain numpy.

It does what `learning.noisy_vectors.training.corrected` does, or `corrected_scores` of the regression where scores are
released, and needs nothing of this project.
"""

from typing import Final

SCRIPT: Final = """\
import json, sys
import datasets, numpy as np

folder = sys.argv[1] if len(sys.argv) > 1 else "."
rows, known = datasets.load_from_disk(folder), json.load(open(folder + "/known.json"))
z, labels = np.array(rows["vector"], float), np.array(rows["label"], int)
(n, d), k, epsilon, scores = z.shape, known["classes"], known["label_epsilon"], known.get("scores")
inner = np.array(known["covariance"])  # of public vectors, which have no noise
# Empty rows make the vectors shorter than public ones with noise; a small gap is taken as none.
lengths, whole = (z**2).sum(1), np.trace(inner) + np.square(known["mean"]).sum()
gap = 1 - (lengths.mean() - d * known["sigma"] ** 2) / whole
full = 1 - min(gap, 0.9) if gap > 0.1 + 2 * lengths.std() / n**0.5 / whole else 1.0
# Weights that undo changed labels: on average 1 for the true class and 0 for others.
changed = 0.0 if epsilon is None else 1 / (np.exp(epsilon) + k - 1)
r = (np.eye(k)[labels] - changed) / (1 - k * changed)
shares = np.maximum(r.mean(0) - (1 - full) / k, 0.02 / k)
score = shares @ scores / shares.sum() if scores else None
means = z.mean(0)[None] / full if scores else r.T @ z / n / shares[:, None]
side = ((r @ scores - score) @ z / n / full)[:, None] if scores else means.T
if known.get("class_means") and not scores:
    off = np.array(known["class_means"]) - np.dot(known["shares"], known["class_means"])
    inner = inner - (off.T * known["shares"]) @ off
weights = np.linalg.solve(inner + 1e-9 * np.trace(inner) * np.eye(d), side)
bias = score - means @ weights[:, 0] if scores else np.log(shares / shares.sum()) - (means.T * weights).sum(0) / 2
np.save(folder + "/weights.npy", weights), np.save(folder + "/bias.npy", bias), print(weights, bias)
"""
"""Run as `python script.py FOLDER`; the folder is the data set's, with `known.json` in it.

known.json: `sigma`; `label_epsilon`, null where labels are true; `classes`; `mean` [d] and `covariance` [d, d] of
public vectors; where scores are released `scores`, the middle of each bin; where public text has labels `class_means`
[classes, d] and `shares` [classes]. It writes weights.npy [d, classes] and bias.npy [classes], or [d, 1] and [1] for
scores: a clean vector's scores are x W + b.
"""
