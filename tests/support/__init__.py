"""What several test modules share: the golden stores and hypothesis strategies."""
