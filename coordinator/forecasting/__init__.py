"""Forecasts of what a run will cost and show, before a budget is spent."""
