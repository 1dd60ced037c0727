"""Engine ring: the loop. It sees workers and text streams only through the protocols in `ports`."""
