"""The Hypothesis profile of all mutation runs: the same examples every time, none shrunk, none kept."""

from hypothesis import Phase, settings

# What tests/conftest.py says comes on top.
settings.register_profile(
    "mutation", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate), database=None
)
settings.load_profile("mutation")
