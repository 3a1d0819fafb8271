"""What ranks do, and why they do not go on."""
