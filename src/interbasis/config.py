"""What a build was asked for: frozen, complete, and refusing what it does not know."""

from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from interbasis.attribution import Sources
from interbasis.basis import Basis
from interbasis.errors import InterbasisError
from interbasis.integration import Method, Rule, rule
from interbasis.linalg import Floor


class BuildConfig(BaseModel):
    """The settings of `interbasis.build`, all of them with their defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    basis: Basis = "lib"
    rotate_last: bool | None = None
    """Rotate the last node layer (PCA, unscaled) or leave it as it is; None is the model family's way."""
    threshold: float = Field(1e-15, ge=0)
    """Directions whose variance, or whose Λ, is at most this are dropped."""
    relative_threshold: float | None = Field(None, ge=0, lt=1)
    """The same as a fraction of the largest one; None is width · 2.2e-16, 0 gives the paper's rule."""
    jacobian_sources: int | None = Field(None, ge=1)
    """Stochastic sources over output positions where no closed form is known; None is exact."""
    edge_method: Method | None = "gradient"
    """How edges are integrated; None builds no edges."""
    edge_points: int = Field(16, ge=1)
    """Nodes of the integration rule, where it has any."""
    edge_group: int | Literal["positions"] | None = None
    """Tokens in a group of stochastic sources for the edges; None is exact."""
    edge_sources: int = Field(2, ge=1)
    """Sets of signs per group."""
    seed: int = Field(0, ge=0, lt=2**63)
    dtype: Literal["float64", "float32"] = "float64"
    """What the network computes in; sums and decompositions are float64 always."""

    @classmethod
    def of(cls, **settings: Any) -> "BuildConfig":
        """Validate, with one sentence for the first thing that is wrong."""
        try:
            return cls(**settings)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"][:1])
            if first["type"] == "extra_forbidden":
                known = ", ".join(cls.model_fields)
                raise InterbasisError(f"there is no setting {name!r}; the settings are {known}") from error
            reason = first["msg"][0].lower() + first["msg"][1:]
            raise InterbasisError(f"the setting {name} cannot be {first['input']!r}: {reason}") from error

    @property
    def floor(self) -> Floor:
        return Floor(self.threshold, self.relative_threshold)

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def edge_rule(self) -> Rule | None:
        return rule(self.edge_method, self.edge_points) if self.edge_method else None

    @property
    def sources(self) -> Sources | None:
        return None if self.edge_group is None else Sources(self.edge_group, self.edge_sources, self.seed)
