"""How servers are reached, and what happens when one is lost."""
