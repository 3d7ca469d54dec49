"""What Heddle adds to its core. Each package joins through the doors of `heddle.doors`."""
