"""Followers, name servers, and who attacks."""
