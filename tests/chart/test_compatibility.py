"""Every feature of other systems in tests/features.toml has a test."""

from collections import Counter

from support.features import PAGE, UNTESTED, build_page, collect_tests, read_features

FEATURES = read_features()
TESTS = collect_tests()


def test_every_feature_has_a_test_or_says_why_not():
    untested = [feature.key for feature in FEATURES if not feature.note.startswith(UNTESTED)]

    assert [key for key in untested if key not in TESTS] == []


def test_every_marker_names_a_feature():
    assert TESTS.keys() - {feature.key for feature in FEATURES} == set()


def test_no_system_lacks_a_feature():
    counts = Counter(feature.system for feature in FEATURES)

    assert counts >= Counter({"verl-tool": 82, "Verlog": 26, "GRL": 22, "verl's multi-turn": 25})


def test_the_committed_page_matches_the_markers():
    assert PAGE.read_text() == build_page(FEATURES, TESTS), "run `make compatibility`"
