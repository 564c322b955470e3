import pytest

from turnmill.testing.tool_calls import NewDialogue
from turnmill.tools.bash_terminal import UNCHANGED

pytestmark = pytest.mark.asyncio(loop_scope="session")


def transcript(seen: str) -> str:
    assert seen.startswith("\n<o>\n")
    assert seen.endswith("\n</o>\n")
    return seen.removeprefix("\n<o>\n").removesuffix("\n</o>\n")


async def test_a_line_is_shown_behind_a_prompt_with_its_output(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal")

    assert await dialogue.say("<bash>cd /tmp; echo hi</bash>") == (
        "\n<o>\nuser@bash-session:~$ cd /tmp; echo hi\nhi\n</o>\n"
    )
    assert transcript(await dialogue.say("<bash>true</bash>")) == "user@bash-session:/tmp$ true"


@pytest.mark.feature("verl-tool", "a shell that persists")
async def test_folder_exports_functions_and_files_stay_and_plain_variables_do_not(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal")
    await dialogue.say(
        "<bash>export WORD='two  words' LINES_=$'a\\nb' HERE=$HOME/q\nPLAIN=x\nmkdir -p q/empty; cd q\n"
        "echo data > file; ln -s file link; chmod 700 file\ngreet() { echo hello $1; }; export -f greet</bash>"
    )

    seen = await dialogue.say(
        '<bash>echo "[$WORD] [$LINES_] [$PLAIN]"; [[ $HERE == $PWD && $PWD == $HOME/q ]] && echo here\n'
        "cat link; ls; stat -c %a file; greet you; bash -c 'greet child'</bash>"
    )

    assert transcript(seen) == (
        'user@bash-session:~/q$ echo "[$WORD] [$LINES_] [$PLAIN]"; '
        "[[ $HERE == $PWD && $PWD == $HOME/q ]] && echo here\n"
        "[two  words] [a\nb] []\nhere\n"
        "user@bash-session:~/q$ cat link; ls; stat -c %a file; greet you; bash -c 'greet child'\n"
        "data\nempty\nfile\nlink\n700\nhello you\nhello child"
    )


async def test_lines_of_one_block_follow_one_another(new_dialogue: NewDialogue):
    seen = await new_dialogue("bash_terminal").say(
        "<bash>mkdir a; cd a\nPLAIN=1; export X=$PLAIN\necho $X$PLAIN</bash>"
    )

    assert transcript(seen) == (
        "user@bash-session:~$ mkdir a; cd a\n"
        "user@bash-session:~/a$ PLAIN=1; export X=$PLAIN\n"
        "user@bash-session:~/a$ echo $X$PLAIN\n1"
    )


async def test_stdout_and_stderr_come_in_their_order_and_errors_do_not_stop_the_block(new_dialogue: NewDialogue):
    seen = await new_dialogue("bash_terminal").say("<bash>echo a; echo b >&2; echo c\nno-such\nif then\necho on</bash>")

    assert transcript(seen) == (
        "user@bash-session:~$ echo a; echo b >&2; echo c\na\nb\nc\n"
        "user@bash-session:~$ no-such\nbash: line 1: no-such: command not found\n"
        "user@bash-session:~$ if then\n"
        "bash: eval: line 1: syntax error near unexpected token `then'\nbash: eval: line 1: `if then'\n"
        "user@bash-session:~$ echo on\non"
    )


@pytest.mark.feature("verl-tool", "a shell that persists")
async def test_a_line_that_takes_too_long_is_ended_and_the_next_one_runs(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal", BASH_TIMEOUT_SECONDS="1")

    seen = await dialogue.say("<bash>export A=1\necho begun; export B=2; sleep 60\necho $A$B</bash>")

    assert transcript(seen) == (
        "user@bash-session:~$ export A=1\n"
        "user@bash-session:~$ echo begun; export B=2; sleep 60\nProcess timed out after 1 seconds\n"
        "user@bash-session:~$ echo $A$B\n1"
    )


async def test_a_process_in_the_background_does_not_hold_the_line_up(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal", BASH_TIMEOUT_SECONDS="20")

    seen = await dialogue.say("<bash>sleep 600 & echo started\nsetsid sleep 600 >/dev/null 2>&1 & echo too</bash>")

    assert transcript(seen).endswith("too")
    assert "timed out" not in seen


@pytest.mark.parametrize("line", ["exit 3", "exec true", "kill -KILL $$", "trap - EXIT"])
async def test_a_line_that_exits_early_keeps_the_earlier_state(new_dialogue: NewDialogue, line):
    seen = await new_dialogue("bash_terminal").say(f"<bash>export A=1; mkdir d; cd d\n{line}\necho $A; pwd</bash>")

    assert "user@bash-session:~/d$ echo $A; pwd\n1\n/" in seen


async def test_leaving_keeps_what_was_exported_before(new_dialogue: NewDialogue):
    seen = await new_dialogue("bash_terminal").say("<bash>export A=1; exit 3\necho $A</bash>")

    assert transcript(seen).endswith("echo $A\n1")


async def test_a_folder_that_is_gone_gives_way_to_the_home(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal")
    await dialogue.say("<bash>mkdir d; cd d; rmdir ../d</bash>")

    assert transcript(await dialogue.say("<bash>true</bash>")) == "user@bash-session:~$ true"


async def test_output_is_cut_at_its_limit_and_says_so(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal", BASH_MAX_OUTPUT_CHARACTERS="1000")

    seen = transcript(await dialogue.say("<bash>yes | head -c 100000\ntouch ran</bash>"))

    assert seen.endswith("\n... [output cut: a block shows 1,000 characters]")
    assert len(seen) < 1100
    assert "file/ran" in dialogue.state


async def test_an_endless_flood_ends_with_its_line(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal", BASH_TIMEOUT_SECONDS="1", BASH_MAX_OUTPUT_CHARACTERS="1000")

    assert transcript(await dialogue.say("<bash>yes\necho on</bash>")) == (
        "user@bash-session:~$ yes\nProcess timed out after 1 seconds\nuser@bash-session:~$ echo on\non"
    )


async def test_files_beyond_the_limits_are_named_and_the_others_stay(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal", BASH_MAX_HOME_BYTES="2000")

    seen = transcript(await dialogue.say("<bash>echo x > small; head -c 3000 /dev/zero > big</bash>"))

    assert seen.endswith("[Not kept for the next turn: big (3,000 bytes; a session keeps 1,000 files, 2,000 bytes)]")
    assert transcript(await dialogue.say("<bash>ls</bash>")).endswith("ls\nsmall")


async def test_folders_keep_their_modes_and_times(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal")
    await dialogue.say("<bash>mkdir -p a/b; echo x > a/b/c; touch -d @2001 a/b; chmod 500 a/b; chmod 700 a</bash>")

    seen = transcript(await dialogue.say("<bash>stat -c '%a %Y' a/b; stat -c %a a; cat a/b/c</bash>"))

    assert seen.endswith("\n500 2001\n700\nx")


@pytest.mark.parametrize("mode", ["0", "444"])
async def test_what_is_in_a_folder_that_cannot_be_looked_into_is_kept(new_dialogue: NewDialogue, mode):
    dialogue = new_dialogue("bash_terminal")

    seen = transcript(await dialogue.say(f"<bash>mkdir -p a/b; echo x > a/b/c; chmod {mode} a/b</bash>"))

    assert "Not kept" not in seen
    seen = transcript(await dialogue.say("<bash>stat -c %a a/b; chmod 700 a/b; cat a/b/c</bash>"))
    assert seen.endswith(f"\n{mode}\nx")


async def test_only_parts_that_changed_are_written(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal")
    await dialogue.say("<bash>echo a > a; echo b > b; export X=1; f() { :; }</bash>")

    await dialogue.say("<bash>echo c > b; rm a; cat b</bash>")
    change = dialogue.result.change

    assert change is not None
    assert (set(change.written), set(change.removed)) == ({"file/b"}, {"file/a"})


async def test_a_shell_does_not_reach_what_keeps_it(new_dialogue: NewDialogue):
    seen = await new_dialogue("bash_terminal").say("<bash>kill -STOP $PPID; kill -KILL $PPID\necho on</bash>")

    assert transcript(seen).endswith("echo on\non")


async def test_a_shell_beyond_a_limit_is_ended_and_left_as_it_was(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal", BASH_MEMORY_MIB="64")
    await dialogue.say("<bash>echo x > kept</bash>")

    eats = "python3 -c 'x = bytearray(40 << 20); import time; time.sleep(9)'"
    seen = await dialogue.say(f"<bash>rm kept; for i in 1 2 3; do {eats} & done; wait</bash>")

    assert UNCHANGED in seen
    assert "file/kept" in dialogue.state
    assert transcript(await dialogue.say("<bash>ls</bash>")).endswith("ls\nkept")


async def test_lines_and_exports_may_be_longer_than_a_variable_can_be(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal", BASH_MAX_OUTPUT_CHARACTERS="1000000")
    await dialogue.say(f"<bash>LONG={'x' * 300_000}; export A=${{LONG:0:200000}} TURNMILL_LINE=y</bash>")

    seen = transcript(await dialogue.say("<bash>echo ${#A} [$TURNMILL_SETUP]\n# a line of its own\necho on</bash>"))

    assert seen.splitlines()[1::2] == ["200000 []", "user@bash-session:~$ echo on"]


@pytest.mark.feature("verl-tool", "state of each trajectory")
async def test_two_trajectories_share_no_home(new_dialogue: NewDialogue):
    one, other = new_dialogue("bash_terminal"), new_dialogue("bash_terminal")
    await one.say("<bash>echo secret > f</bash>")

    assert transcript(await other.say("<bash>ls -A</bash>")) == "user@bash-session:~$ ls -A"


async def test_odd_lines_are_taken_as_they_are(new_dialogue: NewDialogue):
    seen = await new_dialogue("bash_terminal").say(
        "<bash>echo 'ü' \"$#\" '\\0' # comment\necho `echo a` $(echo b)</bash>"
    )

    assert transcript(seen).splitlines()[1::2] == ["ü 0 \\0", "a b"]


async def test_names_of_files_need_not_be_text(new_dialogue: NewDialogue):
    dialogue = new_dialogue("bash_terminal")
    await dialogue.say("<bash>mkdir $'odd \\xff'; cd $'odd \\xff'; echo x > $'\\xfe é'</bash>")

    seen = transcript(
        await dialogue.say("<bash>cat *; basename \"$PWD\" | od -An -c | tr -d ' '\nal\0most \ud800</bash>")
    )

    assert seen.splitlines()[1:3] == ["x", "odd377\\n"]
    assert seen.endswith("almost: command not found")


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


async def test_lines_that_make_one_command_run_as_one_if_that_is_set(new_dialogue: NewDialogue):
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


async def test_lines_run_one_by_one_if_nothing_is_set(new_dialogue: NewDialogue):
    seen = transcript(await new_dialogue("bash_terminal").say("<bash>for i in 1 2; do\necho $i\ndone</bash>"))

    assert [line for line in seen.splitlines() if line.startswith("user@")] == [
        "user@bash-session:~$ for i in 1 2; do",
        "user@bash-session:~$ echo $i",
        "user@bash-session:~$ done",
    ]
