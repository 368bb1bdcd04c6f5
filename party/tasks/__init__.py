"""Tasks: what a party trains. Each kind has a folder; the node checks a task, the training process does it."""
