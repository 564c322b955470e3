"""Names of the store's keys: one namespace per run, one hash slot per trajectory."""

from urllib.parse import quote, unquote

from turnmill.core.errors import SettingsError

PREFIX = "turnmill"
MAX_RUN_CHARACTERS = 200


JOURNALS_OF_ANY_RUN = f"{PREFIX}:*:journal:{{*}}"
"""The pattern of the keys that `Keys.journal` makes for any run, and of no other."""


def run_and_name(key: str) -> tuple[str, str]:
    """The run and the name of the trajectory that `Keys.journal` made the key of."""
    run, _, _ = key.removeprefix(f"{PREFIX}:").partition(":journal:{")
    return unquote(run, errors="surrogatepass"), Keys(unquote(run, errors="surrogatepass")).trajectory_name(key)


class Keys:
    """The keys of one run. The braces make a Redis cluster keep all keys of a trajectory in one place."""

    def __init__(self, run: str) -> None:
        if not 0 < len(run) <= MAX_RUN_CHARACTERS:
            raise SettingsError(
                f"The run's name in the store has {len(run)} characters: give it 1 to {MAX_RUN_CHARACTERS}."
            )
        self._run = _quoted(run)

    def trajectory(self, trajectory_id: str) -> str:
        """Its claims and sizes; `:calls` and `:state:TOOL` after it name what belongs to it."""
        return f"{PREFIX}:{self._run}:trajectory:{{{_quoted(trajectory_id)}}}"

    def journal(self, name: str) -> str:
        """What is known of a trajectory; `:turns` after it names its turns."""
        return f"{PREFIX}:{self._run}:journal:{{{_quoted(name)}}}"

    def trajectory_name(self, key: str) -> str:
        """The name that `journal` made the key of."""
        return unquote(key[key.index("{") + 1 : key.rindex("}")], errors="surrogatepass")

    @property
    def attempt(self) -> str:
        """The newest attempt at the run."""
        return f"{PREFIX}:{self._run}:attempt"

    @property
    def every_trajectory(self) -> str:
        """The pattern of the keys that `trajectory` makes, and of no other."""
        return f"{PREFIX}:{self._run}:trajectory:{{*}}"

    @property
    def every_journal(self) -> str:
        """The pattern of the keys that `journal` makes, and of no other."""
        return f"{PREFIX}:{self._run}:journal:{{*}}"

    @property
    def of_any_server(self) -> str:
        """The pattern of what tool servers, whatever their names, keep of trajectories that begin with the run's."""
        return f"{PREFIX}:*:trajectory:{{{self._run}-*"

    @property
    def everything(self) -> str:
        """The pattern of all keys of the run."""
        return f"{PREFIX}:{self._run}:*"


def _quoted(name: str) -> str:
    # Braces and stars would change the hash slot or the pattern; surrogates come from JSON escapes.
    return quote(name, safe="-_.~/", errors="surrogatepass")
