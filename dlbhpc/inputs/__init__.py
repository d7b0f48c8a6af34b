"""What a launch needs from outside, each verified: source checkout, data, teacher, checkpoints."""
