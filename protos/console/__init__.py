"""The code that both commands share: settings files, checklists, error reporting."""
