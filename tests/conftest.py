"""What all tests share."""

from hypothesis import settings

# How long an example takes tells how busy the machine is: no test asserts on time.
settings.register_profile("turnmill", deadline=None)
settings.load_profile("turnmill")
