import pytest

from turnmill.trajectories.address import PASSWORD, USER, with_password


@pytest.mark.parametrize(
    ("url", "password", "expected"),
    [
        ("redis://store:6379/0", "p@ss/word", "redis://:p%40ss%2Fword@store:6379/0"),
        ("redis://trainer@store:6379", "secret", "redis://trainer:secret@store:6379"),
        ("redis://:own@store:6379", "secret", "redis://:own@store:6379"),
        ("redis://store:6379/0", "", "redis://store:6379/0"),
        ("unix:///run/store.sock", "secret", "unix:///run/store.sock"),
    ],
)
def test_the_password_comes_from_the_environment_unless_the_url_has_one(monkeypatch, url, password, expected):
    monkeypatch.setenv(PASSWORD, password)

    assert with_password(url) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://store:6379/0", "redis://tool%2Fserver:secret@store:6379/0"),
        ("redis://trainer@store:6379", "redis://trainer:secret@store:6379"),
        ("redis://:own@store:6379", "redis://:own@store:6379"),
    ],
)
def test_the_user_comes_from_the_environment_with_the_password(monkeypatch, url, expected):
    monkeypatch.setenv(USER, "tool/server")
    monkeypatch.setenv(PASSWORD, "secret")

    assert with_password(url) == expected
