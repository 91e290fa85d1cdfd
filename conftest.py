"""Check every annotated shape at run time while tests run, and only then."""

import pytest
import torch
from jaxtyping import install_import_hook

install_import_hook("scoremh", "beartype.beartype")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
