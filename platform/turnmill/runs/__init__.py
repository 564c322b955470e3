"""Starting, joining and watching runs, from the job file to the end of all processes."""
