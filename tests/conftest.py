"""Settings that all tests share."""

from hypothesis import settings

# The time that an example takes depends on the load of the machine: there is no deadline.
settings.register_profile("turnmill", deadline=None)
settings.load_profile("turnmill")
