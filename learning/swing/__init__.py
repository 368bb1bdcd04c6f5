"""Swing distillation (Li et al., "Swing Distillation"): a teacher's soft targets, flatter near words that hint at
private facts, noised, or summed over teachers under a real guarantee; and the student that learns from them.
"""
