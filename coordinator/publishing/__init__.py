"""The published folder: model, card, statement, manifest."""
