"""The name under which a fine-tuned model is kept for later runs."""

import hashlib
import json
from pathlib import Path

from turnmill.core.code_hash import hash_code
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.fine_tuning import FineTune
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.summary import versions


def cache_key(job: AgentTrainingJob, model: Path, device: str) -> str:
    """Return a name of 16 hexadecimal digits that changes with everything that makes a fine-tuned model.

    That is: the settings, the content of the data, the files of the model by their sizes and times, the code of the
    fine-tuning, and the versions of libraries. Raises OSError for data that cannot be read.
    """
    settings = job.spec.model.fine_tune
    assert settings is not None
    lora = job.spec.model.lora
    made_of = {
        "settings": settings.model_dump(mode="json", exclude={"data", "from_run"}),
        "data": [_hash_file(file) for file in _data_files(settings)],
        "model": [str(model.absolute()), *_model_files(model)],
        "lora": None if lora is None else lora.model_dump(mode="json"),
        "verl": {name: str(value) for name, value in job.spec.verl.items() if ".model." in name},
        "device": device,
        "code": hash_code([Path(__file__).parent]),
        "versions": versions(),
    }
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]


def _data_files(settings: FineTune) -> list[Path]:
    if settings.data is not None:
        return [Path(settings.data)]
    assert settings.from_run is not None
    run = RunFolder(settings.from_run)
    return [run.job, *sorted(run.trajectories.glob("*"))]


def _hash_file(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _model_files(model: Path) -> list[str]:
    files = (path for path in sorted(model.iterdir()) if path.is_file())
    return [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
