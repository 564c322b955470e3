"""Conditions of a job, and the messages in them."""

from collections.abc import Mapping

from turnmill.jobs.status import ConditionType
from turnmill_operator.ray_job_status import Failure
from turnmill_operator.status import NON_RETRYABLE_REASONS, DesiredCondition, Reason


def suspended_conditions() -> Mapping[ConditionType, DesiredCondition]:
    """Return the conditions of a suspended job."""
    message = "No Ray cluster is held. Set spec.suspend to false to carry on from the last checkpoint."
    return {"Suspended": DesiredCondition(True, Reason.SUSPENDED_BY_SPEC, message)}


def starting_conditions(message: str) -> Mapping[ConditionType, DesiredCondition]:
    """Return the conditions of a job whose RayJob has just been made."""
    return {
        "ClusterReady": DesiredCondition(False, Reason.WAITING_FOR_PODS, message),
        "Running": DesiredCondition(False, Reason.WAITING_FOR_CLUSTER),
    }


def name_taken(name: str) -> DesiredCondition:
    """Return the condition of a job whose RayJob's name is taken."""
    message = (
        f"RayJob {name} belongs to something else, perhaps to a job of the same name that is still being deleted. "
        "Wait until it is gone, or delete it."
    )
    return DesiredCondition(False, Reason.NAME_TAKEN, message)


def way_out(failure: Failure, failed_attempts: int, retries: int) -> str:
    """Return what the user can do about a job that has failed for good."""
    if failure.reason in NON_RETRYABLE_REASONS:
        return "Another attempt would end the same way: correct the job and submit it under another name."
    used = f"All {retries} retries are used." if retries else "spec.retries is 0."
    return f"{used} The run's folder has its logs. Raise spec.retries to carry on from the last checkpoint."
