"""Check every annotated shape at run time while tests run, and only then."""

import pytest
import torch
from jaxtyping import install_import_hook

install_import_hook("scoremh", "beartype.beartype")


@pytest.fixture
def generator() -> torch.Generator:
    """Return a generator with a fixed seed."""
    return torch.Generator().manual_seed(0)
