"""Rules by the name of the operation, a file per kind."""

from interbasis.models.traced.rules import attention, images, linear, norms, pointwise

RULES = linear.RULES | norms.RULES | pointwise.RULES | images.RULES | attention.RULES
