"""Of all tests: an example takes as long as it takes, for machines are busy; else Hypothesis' own rules hold."""

from hypothesis import settings

settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")
