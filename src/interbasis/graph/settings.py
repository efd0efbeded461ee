"""What a build was asked for: frozen, complete, and refusing what it does not know."""

from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from interbasis.numerics.integration import Rule, rule
from interbasis.numerics.linalg import Floor
from interbasis.numerics.random_signs import Sources
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.literals import Basis, Dtype, Method

ROUNDINGS = 256
"""Roundings of a number, one after the other, that the noise floor allows for. Noise was measured at a fourth
of that and below, features of trained models at 40 times and above (docs/method.md, "Noise floor")."""


class BuildConfig(BaseModel):
    """The settings of `interbasis.build`, all of them with their defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    basis: Basis = "lib"
    rotate_last: bool | None = None
    """Rotate the last node layer (PCA, unscaled) or leave it as it is; None is the model family's way."""
    threshold: float = Field(1e-15, ge=0)
    """Directions whose variance, or whose Λ, is at most this are dropped."""
    relative_threshold: float | None = Field(None, ge=0, lt=1)
    """The same as a fraction of the largest one; None is width · 2.2e-16 and what rounding in the network's
    dtype amounts to in that direction; 0 gives the paper's rule."""
    jacobian_sources: int | None = Field(None, ge=1)
    """Stochastic sources over output positions where no closed form is known; None is exact."""
    jacobian_queries: int | None = Field(None, ge=2)
    """Query positions sampled per sequence where attention's Jacobians are summed; None is all of them. The
    estimate is unbiased and comes with errors of Λ, in the layers before the attention too."""
    isolate: bool = True
    """Keep a layer norm's variance as a feature of its own, out of the decompositions, as in the paper."""
    edge_method: Method | None = "gradient"
    """How edges are integrated; None builds no edges."""
    edge_points: int = Field(16, ge=1)
    """Nodes of the integration rule, where it has any."""
    edge_group: Annotated[int, Field(ge=1)] | Literal["positions"] | None = None
    """Tokens in a group of stochastic sources for the edges; None is exact."""
    edge_sources: int = Field(2, ge=1)
    """Sets of signs per group."""
    edge_positions: int | None = Field(None, ge=1)
    """Output positions looked at per sequence, drawn at random; None is all of them. Needs an edge_group."""
    seed: int = Field(0, ge=0, lt=2**63)
    dtype: Dtype | None = None
    """What the network computes in, None the model family's way (float32 for Hugging Face models, else
    float64); sums over the data and decompositions are float64 always."""

    @field_validator("edge_positions")
    @classmethod
    def _belongs_to_a_group(cls, positions: int | None, info: ValidationInfo) -> int | None:
        if positions is not None and info.data.get("edge_group") is None:
            raise ValueError("positions are sampled for stochastic sources only; give an edge_group as well")
        return positions

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
    def variance_floor(self) -> Floor:
        """Activations after ROUNDINGS roundings, a random walk, and a variance is a square."""
        return Floor(self.threshold, self.relative_threshold, ROUNDINGS * self._unit_roundoff**2)

    @property
    def jacobian_floor(self) -> Floor:
        """Sums of products, ROUNDINGS roundings in the same direction."""
        return Floor(self.threshold, self.relative_threshold, ROUNDINGS * self._unit_roundoff)

    @property
    def _unit_roundoff(self) -> float:
        return torch.finfo(self.torch_dtype).eps / 2

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype or "float64")

    @property
    def edge_rule(self) -> Rule | None:
        return rule(self.edge_method, self.edge_points) if self.edge_method else None

    @property
    def sources(self) -> Sources | None:
        if self.edge_group is None:
            return None
        return Sources(self.edge_group, self.edge_sources, self.seed, self.edge_positions)


class BuildRequest(BuildConfig):
    """The settings of `interbasis.build` with the names of what they are for; unknown keys are refused."""

    model: str
    data: str | None = None
    """Data of the basis; None is what the model was trained on."""
    jacobian_data: str | None = None
    """Data over which Jacobians are averaged; None is ``data``."""
    edge_data: str | None = None
    """Data over which edges are averaged; None is ``data``."""
    layers: tuple[str, ...] | None = None
    """Node layers, neighbours in the network's order; None is all of them."""
    threads: int | None = Field(None, ge=1)
    """Threads to compute with; the same number gives the same bits. None is PyTorch's choice."""

    @property
    def settings(self) -> BuildConfig:
        """The fields of `BuildConfig` alone."""
        return BuildConfig(**{name: getattr(self, name) for name in BuildConfig.model_fields})
