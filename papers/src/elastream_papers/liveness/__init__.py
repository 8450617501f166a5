"""Random dataflows on which every policy must act on sustained overload and keep its promises."""
