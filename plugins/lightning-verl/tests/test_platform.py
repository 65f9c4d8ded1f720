"""verl knows the processor, and what runs on it: whole trainings show that it works."""

import os

import pytest

pytestmark = pytest.mark.timeout(300)


@pytest.mark.skipif("VERL_PLATFORM" in os.environ, reason="a platform is asked for")
@pytest.mark.filterwarnings("ignore")  # those of verl and of what it imports
def test_verl_loads_the_platform_and_never_picks_it_by_itself() -> None:
    from verl.plugin.platform import PlatformRegistry
    from verl.utils.device import get_device_name

    assert "cpu" in PlatformRegistry.registered_names()
    assert get_device_name() != "cpu"
