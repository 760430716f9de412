"""Scenes: named lists of Actions that are sent when a scene is activated (reference 12.5)."""
