"""Model families. `registry.resolve` finds a class; importing this imports none of them."""
