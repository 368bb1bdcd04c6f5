"""Accounting: what events cost, and how much noise a budget needs."""
