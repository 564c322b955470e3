"""verl and vLLM without a GPU, through their own plug-in points."""
