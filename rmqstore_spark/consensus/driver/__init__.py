"""Runs a member."""
