"""What the tests of views share."""

from collections.abc import Iterator

import pytest

from torchllp.views import image


@pytest.fixture
def _no_fake_normalisation() -> Iterator[None]:
    """A fake tensor is of no use outside its mode, so none may stay in the cache."""
    image._normalisation.cache_clear()
    yield
    image._normalisation.cache_clear()
