"""Rules by the name of the operation, a file per kind."""

from interbasis.models.traced.recognise import Rule
from interbasis.models.traced.rules import attention, images, linear, norms, pointwise

RULES: dict[str, Rule] = {
    **linear.RULES,
    **pointwise.RULES,
    **norms.RULES,
    **images.RULES,
    **attention.RULES,
}
