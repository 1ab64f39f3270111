"""What a store process and its clients say to each other; needs neither of them."""
