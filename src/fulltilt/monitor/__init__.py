"""Recording → figures → verdict; and the live view of them."""
