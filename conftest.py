"""Check annotated shapes at run time while tests run, and only then.

Slow tests of `make test` run without these checks, as users run the library.
"""

import pytest
import torch
from jaxtyping import install_import_hook

# Layers 0, 3 and 4, where shapes are annotated.
CHECKED = (
    *("types", "coordinates", "_shared"),
    *("proposals", "acceptance", "kernel", "balance_matching"),
    *("sampling", "annealing"),
)


def pytest_configure(config: pytest.Config) -> None:
    """Install the checks before anything is imported."""
    if config.getoption("markexpr") != "slow":
        install_import_hook([f"scoremh.{name}" for name in CHECKED], "beartype.beartype")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of the site, whose building takes longest: no worker is left waiting for it at the end."""
    items.sort(key=lambda item: "test_site" not in item.nodeid)


@pytest.fixture
def generator() -> torch.Generator:
    """Return a generator with a fixed seed."""
    return torch.Generator().manual_seed(0)
