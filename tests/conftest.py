"""Settings that hold for all tests."""

from hypothesis import settings

# A busy machine is no fault of an example's; pytest's own timeout ends a test that hangs.
settings.register_profile("shoal", deadline=None)
settings.load_profile("shoal")
