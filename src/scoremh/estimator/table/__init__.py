"""Tables: columns of different kinds as one tensor with a density, and back."""

from scoremh.estimator.table.columns import Column
from scoremh.estimator.table.table import Kinds, Table

__all__ = ["Column", "Kinds", "Table"]
