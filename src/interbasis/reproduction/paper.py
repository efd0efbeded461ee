"""The paper's own figures, and those that its authors' published run files hold, to be put beside ours."""

ATTENTION, MLP, UNEMBEDDING = range(3)
"""Sections of modular addition, in order; also the layers that they begin at."""
SECTIONS = ("attention", "MLP", "unembedding")

MONOSEMANTIC = {"lib": (14, 13, 18, 16, 13), "pca": (16, 13, 18, 16, 5)}
"""Features over 90 % one term among the first 10 of three layers, the constants included; seeds 0 to 4."""

AUTHORS: dict[str, dict[str, tuple[int, int, int]]] = {
    "58790d690ea202362e3a607d23d2fa9fb29901a5ede789486d072585448fa893": {
        "lib": (133, 82, 633), "pca": (167, 114, 682),
    },
    "10fc5a920bec56a3543dbc27341c4d4f1894971aa33fa5b49c6136453a925743": {
        "lib": (80, 75, 699), "pca": (76, 53, 734),
    },
}  # fmt: skip
"""Edges required in the authors' own run files, by the fingerprint of the model; seeds 0 and 1."""

ACCURACY = (0.466, 0.484)
"""Smallest and largest test accuracy of the CIFAR-10 models."""
FEW_EDGES = 25
DIRECTION = {"auroc": 0.932, "model": 0.946, "explained": 0.54, "before": 0.476, "after": 0.546}
"""The last layer's animal direction in LIB; accuracy before and after it is set by the true label."""
