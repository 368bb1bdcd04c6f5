"""What `party check` looks at, one module a subject; each gives lines of the checklist."""
