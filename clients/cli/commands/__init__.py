"""The commands, one module each, or two that are alike in one."""
