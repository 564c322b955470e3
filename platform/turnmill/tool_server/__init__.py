"""The tool server: verl-tool's API over HTTP, any number of equal replicas, state in the trajectory store alone."""
