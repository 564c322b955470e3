"""What a job takes: which process runs where, and what each GPU holds (`turnmill check --explain`)."""
