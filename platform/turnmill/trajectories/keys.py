"""Names of the store's keys: one namespace per run, one hash slot per trajectory."""

from urllib.parse import quote, unquote

from turnmill.core.errors import SettingsError

PREFIX = "turnmill"
MAX_RUN_CHARACTERS = 200

CALLS = ":calls"
"""Suffix of the key with the records of a trajectory's calls."""

TURNS, REQUESTS = ":turns", ":requests"
"""Suffixes of the keys with a journal's turns and with the claims on its requests."""


JOURNALS_OF_ANY_RUN = f"{PREFIX}:*:journal:{{*}}"
"""Pattern that matches exactly the keys of `Keys.journal` for any run."""


def state_suffix(tool: str) -> str:
    """Return the suffix of the key with a tool's state."""
    return f":state:{tool}"


def run_and_name(key: str) -> tuple[str, str]:
    """Return the run and the trajectory's name of a journal's key."""
    run, _, _ = key.removeprefix(f"{PREFIX}:").partition(":journal:{")
    return unquote(run, errors="surrogatepass"), Keys(unquote(run, errors="surrogatepass")).trajectory_name(key)


class Keys:
    """The keys of one run. The braces put all keys of a trajectory into one hash slot of a Redis cluster."""

    def __init__(self, run: str) -> None:
        if not 0 < len(run) <= MAX_RUN_CHARACTERS:
            raise SettingsError(
                f"The run's name in the store has {len(run)} characters: give it 1 to {MAX_RUN_CHARACTERS}."
            )
        self._run = _quoted(run)

    def trajectory(self, trajectory_id: str) -> str:
        """Return the key of a trajectory's claims and sizes; the others are this and a suffix."""
        return f"{PREFIX}:{self._run}:trajectory:{{{_quoted(trajectory_id)}}}"

    def journal(self, name: str) -> str:
        """Return the key of a trajectory's journal; the others are this and a suffix."""
        return f"{PREFIX}:{self._run}:journal:{{{_quoted(name)}}}"

    def trajectory_name(self, key: str) -> str:
        """Return the trajectory's name of a journal's key."""
        return unquote(key[key.index("{") + 1 : key.rindex("}")], errors="surrogatepass")

    def replica(self, replica: str) -> str:
        """Return the key that is there while a replica of a gateway lives."""
        return f"{PREFIX}:{self._run}:replica:{replica}"

    @property
    def attempt(self) -> str:
        """Key of the number of the latest attempt at the run."""
        return f"{PREFIX}:{self._run}:attempt"

    @property
    def every_trajectory(self) -> str:
        """Pattern that matches exactly the keys of `trajectory`."""
        return f"{PREFIX}:{self._run}:trajectory:{{*}}"

    @property
    def every_journal(self) -> str:
        """Pattern that matches exactly the keys of `journal`."""
        return f"{PREFIX}:{self._run}:journal:{{*}}"

    @property
    def of_any_server(self) -> str:
        """Pattern of the keys of any tool server for trajectories whose ids begin with the run's name."""
        return f"{PREFIX}:*:trajectory:{{{self._run}-*"

    @property
    def everything(self) -> str:
        """Pattern of all keys of the run."""
        return f"{PREFIX}:{self._run}:*"


def _quoted(name: str) -> str:
    # Braces and stars would change the hash slot or the pattern; surrogates come from JSON escapes.
    return quote(name, safe="-_.~/", errors="surrogatepass")
