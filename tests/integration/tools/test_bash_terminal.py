import pytest

from turnmill.testing.tool_calls import NewDialogue
from turnmill.tools.bash_terminal import UNCHANGED

pytestmark = pytest.mark.asyncio(loop_scope="session")


def transcript(observation: str) -> str:
    assert observation.startswith("\n<o>\n")
    assert observation.endswith("\n</o>\n")
    return observation.removeprefix("\n<o>\n").removesuffix("\n</o>\n")


async def test_a_line_is_shown_behind_a_prompt_with_its_output(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal")

    assert await dialogue.say("<bash>cd /tmp; echo hi</bash>") == (
        "\n<o>\nuser@bash-session:~$ cd /tmp; echo hi\nhi\n</o>\n"
    )
    assert transcript(await dialogue.say("<bash>true</bash>")) == "user@bash-session:/tmp$ true"


@pytest.mark.feature("verl-tool", "a shell that persists")
async def test_folder_exports_functions_and_files_are_kept_but_plain_variables_are_not(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal")
    await dialogue.say(
        "<bash>export WORD='two  words' LINES_=$'a\\nb' HERE=$HOME/q\nPLAIN=x\nmkdir -p q/empty; cd q\n"
        "echo data > file; ln -s file link; chmod 700 file\ngreet() { echo hello $1; }; export -f greet</bash>"
    )

    observation = await dialogue.say(
        '<bash>echo "[$WORD] [$LINES_] [$PLAIN]"; [[ $HERE == $PWD && $PWD == $HOME/q ]] && echo here\n'
        "cat link; ls; stat -c %a file; greet you; bash -c 'greet child'</bash>"
    )

    assert transcript(observation) == (
        'user@bash-session:~/q$ echo "[$WORD] [$LINES_] [$PLAIN]"; '
        "[[ $HERE == $PWD && $PWD == $HOME/q ]] && echo here\n"
        "[two  words] [a\nb] []\nhere\n"
        "user@bash-session:~/q$ cat link; ls; stat -c %a file; greet you; bash -c 'greet child'\n"
        "data\nempty\nfile\nlink\n700\nhello you\nhello child"
    )


async def test_lines_of_one_block_run_in_order_in_one_shell(new_dialogue: NewDialogue):
    observation = await new_dialogue("bash_terminal").say(
        "<bash>mkdir a; cd a\nPLAIN=1; export X=$PLAIN\necho $X$PLAIN</bash>"
    )

    assert transcript(observation) == (
        "user@bash-session:~$ mkdir a; cd a\n"
        "user@bash-session:~/a$ PLAIN=1; export X=$PLAIN\n"
        "user@bash-session:~/a$ echo $X$PLAIN\n1"
    )


async def test_stdout_and_stderr_keep_their_order_and_errors_do_not_stop_the_block(new_dialogue: NewDialogue):
    observation = await new_dialogue("bash_terminal").say(
        "<bash>echo a; echo b >&2; echo c\nno-such\nif then\necho on</bash>"
    )

    assert transcript(observation) == (
        "user@bash-session:~$ echo a; echo b >&2; echo c\na\nb\nc\n"
        "user@bash-session:~$ no-such\nbash: line 1: no-such: command not found\n"
        "user@bash-session:~$ if then\n"
        "bash: eval: line 1: syntax error near unexpected token `then'\nbash: eval: line 1: `if then'\n"
        "user@bash-session:~$ echo on\non"
    )


@pytest.mark.feature("verl-tool", "a shell that persists")
async def test_a_line_beyond_the_timeout_is_ended_and_the_next_line_runs(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal", BASH_TIMEOUT_SECONDS="1")

    observation = await dialogue.say("<bash>export A=1\necho begun; export B=2; sleep 60\necho $A$B</bash>")

    assert transcript(observation) == (
        "user@bash-session:~$ export A=1\n"
        "user@bash-session:~$ echo begun; export B=2; sleep 60\nProcess timed out after 1 seconds\n"
        "user@bash-session:~$ echo $A$B\n1"
    )


async def test_a_background_process_does_not_block_its_line(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal", BASH_TIMEOUT_SECONDS="20")

    observation = await dialogue.say(
        "<bash>sleep 600 & echo started\nsetsid sleep 600 >/dev/null 2>&1 & echo too</bash>"
    )

    assert transcript(observation).endswith("too")
    assert "timed out" not in observation


@pytest.mark.parametrize("line", ["exit 3", "exec true", "kill -KILL $$", "trap - EXIT"])
async def test_a_line_that_exits_early_keeps_the_earlier_state(new_dialogue: NewDialogue, line):
    observation = await new_dialogue("bash_terminal").say(
        f"<bash>export A=1; mkdir d; cd d\n{line}\necho $A; pwd</bash>"
    )

    assert "user@bash-session:~/d$ echo $A; pwd\n1\n/" in observation


async def test_exit_keeps_earlier_exports(new_dialogue: NewDialogue):
    observation = await new_dialogue("bash_terminal").say("<bash>export A=1; exit 3\necho $A</bash>")

    assert transcript(observation).endswith("echo $A\n1")


async def test_a_deleted_working_folder_is_replaced_by_the_home(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal")
    await dialogue.say("<bash>mkdir d; cd d; rmdir ../d</bash>")

    assert transcript(await dialogue.say("<bash>true</bash>")) == "user@bash-session:~$ true"


async def test_output_is_cut_at_its_limit_with_a_notice(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal", BASH_MAX_OUTPUT_CHARACTERS="1000")

    observation = transcript(await dialogue.say("<bash>yes | head -c 100000\ntouch ran</bash>"))

    assert observation.endswith("\n... [output cut: a block shows 1,000 characters]")
    assert len(observation) < 1100
    assert "file/ran" in dialogue.state


async def test_endless_output_ends_at_the_timeout_of_its_line(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal", BASH_TIMEOUT_SECONDS="1", BASH_MAX_OUTPUT_CHARACTERS="1000")

    assert transcript(await dialogue.say("<bash>yes\necho on</bash>")) == (
        "user@bash-session:~$ yes\nProcess timed out after 1 seconds\nuser@bash-session:~$ echo on\non"
    )


async def test_files_beyond_the_limits_are_reported_and_the_others_are_kept(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal", BASH_MAX_HOME_BYTES="2000")

    observation = transcript(await dialogue.say("<bash>echo x > small; head -c 3000 /dev/zero > big</bash>"))

    assert observation.endswith(
        "[Not kept for the next turn: big (3,000 bytes; a session keeps 1,000 files, 2,000 bytes)]"
    )
    assert transcript(await dialogue.say("<bash>ls</bash>")).endswith("ls\nsmall")


async def test_folders_keep_their_modes_and_times(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal")
    await dialogue.say("<bash>mkdir -p a/b; echo x > a/b/c; touch -d @2001 a/b; chmod 500 a/b; chmod 700 a</bash>")

    observation = transcript(await dialogue.say("<bash>stat -c '%a %Y' a/b; stat -c %a a; cat a/b/c</bash>"))

    assert observation.endswith("\n500 2001\n700\nx")


@pytest.mark.parametrize("mode", ["0", "444"])
async def test_files_in_an_unreadable_folder_are_kept(new_dialogue: NewDialogue, mode):
    dialogue = new_dialogue("bash_terminal")

    observation = transcript(await dialogue.say(f"<bash>mkdir -p a/b; echo x > a/b/c; chmod {mode} a/b</bash>"))

    assert "Not kept" not in observation
    observation = transcript(await dialogue.say("<bash>stat -c %a a/b; chmod 700 a/b; cat a/b/c</bash>"))
    assert observation.endswith(f"\n{mode}\nx")


async def test_only_parts_that_changed_are_written(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal")
    await dialogue.say("<bash>echo a > a; echo b > b; export X=1; f() { :; }</bash>")

    await dialogue.say("<bash>echo c > b; rm a; cat b</bash>")
    change = dialogue.result.change

    assert change is not None
    assert (set(change.written), set(change.removed)) == ({"file/b"}, {"file/a"})


async def test_a_shell_can_neither_stop_nor_kill_its_supervisor(new_dialogue: NewDialogue):
    observation = await new_dialogue("bash_terminal").say("<bash>kill -STOP $PPID; kill -KILL $PPID\necho on</bash>")

    assert transcript(observation).endswith("echo on\non")


async def test_a_shell_beyond_a_limit_is_ended_and_its_state_is_unchanged(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal", BASH_MEMORY_MIB="64")
    await dialogue.say("<bash>echo x > kept</bash>")

    allocate = "python3 -c 'x = bytearray(40 << 20); import time; time.sleep(9)'"
    observation = await dialogue.say(f"<bash>rm kept; for i in 1 2 3; do {allocate} & done; wait</bash>")

    assert UNCHANGED in observation
    assert "file/kept" in dialogue.state
    assert transcript(await dialogue.say("<bash>ls</bash>")).endswith("ls\nkept")


async def test_lines_and_exports_may_exceed_the_size_limit_of_an_environment_variable(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal", BASH_MAX_OUTPUT_CHARACTERS="1000000")
    await dialogue.say(f"<bash>LONG={'x' * 300_000}; export A=${{LONG:0:200000}} TURNMILL_LINE=y</bash>")

    observation = transcript(
        await dialogue.say("<bash>echo ${#A} [$TURNMILL_SETUP]\n# a line of its own\necho on</bash>")
    )

    assert observation.splitlines()[1::2] == ["200000 []", "user@bash-session:~$ echo on"]


@pytest.mark.feature("verl-tool", "state of each trajectory")
async def test_two_trajectories_share_no_home(new_dialogue: NewDialogue):
    one, other = new_dialogue("bash_terminal"), new_dialogue("bash_terminal")
    await one.say("<bash>echo secret > f</bash>")

    assert transcript(await other.say("<bash>ls -A</bash>")) == "user@bash-session:~$ ls -A"


async def test_lines_with_special_characters_run_unchanged(new_dialogue: NewDialogue):
    observation = await new_dialogue("bash_terminal").say(
        "<bash>echo 'ü' \"$#\" '\\0' # comment\necho `echo a` $(echo b)</bash>"
    )

    assert transcript(observation).splitlines()[1::2] == ["ü 0 \\0", "a b"]


async def test_file_names_need_not_be_valid_utf_8(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal")
    await dialogue.say("<bash>mkdir $'odd \\xff'; cd $'odd \\xff'; echo x > $'\\xfe é'</bash>")

    observation = transcript(
        await dialogue.say("<bash>cat *; basename \"$PWD\" | od -An -c | tr -d ' '\nal\0most \ud800</bash>")
    )

    assert observation.splitlines()[1:3] == ["x", "odd377\\n"]
    assert observation.endswith("almost: command not found")


LOOP = """for i in 1 2; do
  echo $i

done
cat > f.py <<'END'
if x:

    print("do")
END
echo a \\
  b
echo "one
two" | \\
  cat
wc -l < f.py
if true; then echo 'open
echo last"""


async def test_lines_of_one_command_are_joined_if_joining_is_on(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal", BASH_JOIN_LINES="on")

    assert transcript(await dialogue.say(f"<bash>{LOOP}</bash>")) == (
        "user@bash-session:~$ for i in 1 2; do\n>   echo $i\n> \n> done\n1\n2\n"
        "user@bash-session:~$ cat > f.py <<'END'\n> if x:\n> \n>     print(\"do\")\n> END\n"
        "user@bash-session:~$ echo a \\\n>   b\na b\n"
        'user@bash-session:~$ echo "one\n> two" | \\\n>   cat\none\ntwo\n'
        "user@bash-session:~$ wc -l < f.py\n3\n"
        "user@bash-session:~$ if true; then echo 'open\n"
        "bash: eval: line 1: unexpected EOF while looking for matching `''\n"
        "user@bash-session:~$ echo last\nlast"
    )


async def test_lines_run_one_by_one_by_default(new_dialogue: NewDialogue):
    observation = transcript(await new_dialogue("bash_terminal").say("<bash>for i in 1 2; do\necho $i\ndone</bash>"))

    assert [line for line in observation.splitlines() if line.startswith("user@")] == [
        "user@bash-session:~$ for i in 1 2; do",
        "user@bash-session:~$ echo $i",
        "user@bash-session:~$ done",
    ]
