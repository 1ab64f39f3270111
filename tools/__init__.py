"""What `make` needs; no part of the installed package."""
