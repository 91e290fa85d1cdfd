"""Distances between two samples: true distances, the paper's three numbers, and tests. Usable on anyone's samples.

Samples are `(point, *event)` tensors or arrays of any event shape, or data frames of numbers; everything is computed in
float64, in pieces that fit into memory. A name carries its power: `w2` is a distance, `mmd_squared` is squared. A
number means little without its `floor`, its value between two fresh samples of the distribution itself. `w1`, `w2` need
`pip install 'scoremh[metrics]'`.
"""

from scoremh.metrics.kernels import energy_distance, mmd_squared
from scoremh.metrics.paper import Floor, PaperMetrics, floor, paper_metrics
from scoremh.metrics.transport import sinkhorn_divergence, sliced_w2, w1, w2
from scoremh.metrics.two_sample import TwoSampleTest, c2st, two_sample_test

__all__ = [
    "Floor",
    "PaperMetrics",
    "TwoSampleTest",
    "c2st",
    "energy_distance",
    "floor",
    "mmd_squared",
    "paper_metrics",
    "sinkhorn_divergence",
    "sliced_w2",
    "two_sample_test",
    "w1",
    "w2",
]
