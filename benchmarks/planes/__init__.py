"""Control planes under load, with null workers: how they are started, loaded and watched."""
