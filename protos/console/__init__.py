"""What both commands share: settings files, checklists, how a failure is told."""
