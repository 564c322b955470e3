from pathlib import Path

import pytest

from turnmill.core.errors import SettingsError
from turnmill.runs.preparation import resolve_device

HAS_GPU = any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/nvidia0"))


def test_the_cpu_is_always_available():
    assert resolve_device("cpu") == "cpu"


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_auto_is_the_cpu_without_a_gpu():
    assert resolve_device("auto") == "cpu"


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_cuda_is_refused_without_a_gpu():
    with pytest.raises(SettingsError, match=r"spec\.resources\.device: cuda.*Use cpu or auto"):
        resolve_device("cuda")
