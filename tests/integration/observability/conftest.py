import pytest

from support.contained_tests import contain, run_contained


@pytest.fixture
def contained() -> None:
    """Run the test, which mounts a file system, in its own namespaces."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    contain(items, "contained")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_contained(pyfuncitem)
