"""Starting, joining and watching runs: the processes of a job from its file to its end."""
