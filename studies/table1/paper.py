"""The numbers that the paper prints in its Table 1."""

_ROWS: dict[str, dict[str, tuple[float, float, float]]] = {
    "moons": {
        "ula": (0.143, 0.096, 0.054),
        "score_rw": (0.019, 0.007, 0.004),
        "score_mala": (0.018, 0.004, 0.002),
        "score_pcn": (0.039, 0.021, 0.012),
    },
    "pinwheel": {
        "ula": (0.106, 0.062, 0.022),
        "score_rw": (0.012, 0.001, 0.001),
        "score_mala": (0.086, 0.064, 0.027),
        "score_pcn": (0.016, 0.007, 0.003),
    },
    "s_curve": {
        "ula": (0.082, 0.055, 0.016),
        "score_rw": (0.050, 0.015, 0.004),
        "score_mala": (0.046, 0.014, 0.004),
        "score_pcn": (0.090, 0.051, 0.017),
    },
    "swiss_roll": {
        "ula": (2.881, 14.409, 0.811),
        "score_rw": (2.270, 8.470, 0.400),
        "score_mala": (1.399, 4.575, 0.245),
        "score_pcn": (14.167, 113.824, 6.903),
    },
}
TABLE_1: dict[str, dict[str, dict[str, float]]] = {
    dataset: {method: dict(zip(("w1", "w2", "mmd"), row, strict=True)) for method, row in rows.items()}
    for dataset, rows in _ROWS.items()
}
"""By dataset, method and metric."""
