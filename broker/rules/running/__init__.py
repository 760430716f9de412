"""Runs rules: the engine, its evaluator, and the rules that are loaded (reference 12.3 and 12.4)."""
