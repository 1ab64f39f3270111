"""Programs that `make` calls; not part of the installed package."""
