"""A network as a chain of sections, each skip + write ∘ core ∘ read."""
