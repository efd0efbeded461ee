"""Claims L1 to L5, language models: rules over the numbers of a LIB and a PCA job."""

from collections.abc import Mapping, Sequence

from interbasis_studies.paper.claims import PaperClaim, Verdict, spread
from interbasis_studies.paper.records import ComparedEdges, Reproduction
from interbasis_studies.paper.tasks.language import records
from interbasis_studies.paper.tasks.language.records import CENTRAL_KINDS, LanguageResult

HALF = 0.5
PAPER_POSITIONAL, MIN_POSITIONAL = 0.97, 0.9
"""Shares of the first directions' variance that position explains."""
MIN_OWN_EDGE = 0.9
"""Share of an output's Ê² that one edge carries if a layer norm is 1-to-1."""
MIN_VARIANCE_REACH = 0.9
"""Share of the outputs that the variance reaches."""
MOST_OUTPUTS = 0.5
"""An input with needed edges to more than this share of the outputs reaches most of them."""
MIN_REMOVABLE = 0.8
"""Share of edges that can go."""

L1 = PaperClaim(
    "L1", "start of the middle block: the first 4 LIB directions are positional",
    "about 97 % of their variance; GPT2-small, block 6",
    f"average at least {MIN_POSITIONAL:.0%}; differs where one direction has {HALF:.0%}", "LIB",
)  # fmt: skip
L2 = PaperClaim(
    "L2", "layer-norm edges are 1-to-1 but for the variance, which feature 1 drives most and which "
    "reaches all outputs", "picture",
    "in every norm the median of the first 50 outputs, as many as the paper pictures, has "
    f"{MIN_OWN_EDGE:.0%} of its Ê² from one feature, in most feature 1 is first, and the variance reaches "
    f"{MIN_VARIANCE_REACH:.0%} of the outputs; differs where some of these hold", "LIB",
)  # fmt: skip
L3 = PaperClaim(
    "L3", "the first two inputs reach most outputs of the attention", "picture, block 6",
    f"needed edges to more than {MOST_OUTPUTS:.0%} of the outputs from both; differs where from one", "LIB",
)  # fmt: skip
L4 = PaperClaim(
    "L4", "80–95 % of the edges of attention and MLP sections can go, in both bases", "80–95 %, GPT2-small",
    f"at least {MIN_REMOVABLE:.0%} in every section and basis; differs where in half of them", "LIB and PCA",
)  # fmt: skip
L5 = PaperClaim(
    "L5", "LIB sparser than PCA in all attention and MLP sections", "all, TinyStories-1M",
    "fewer in every section; differs where in more than half; clearly: the 95 % interval of the ratio "
    "excludes 1", "LIB and PCA",
)  # fmt: skip


def verdicts(r: Reproduction[LanguageResult]) -> list[Verdict]:
    """All five claims; those whose numbers are not there yet as open."""
    lib, pca = (next(iter(r.of_basis(basis)), None) for basis in ("lib", "pca"))
    return [
        positional(lib.profiles) if lib and lib.profiles else L1.open(),
        layer_norms(list(lib.norms.values()), lib.middle) if lib else L2.open(),
        attention_inputs(list(lib.reach.values()), lib.middle) if lib and lib.reach else L3.open(),
        can_go(removable(lib), removable(pca)) if lib and pca else L4.open(),
        sparser(r.comparison, lib.kinds) if lib and r.comparison else L5.open(),
    ]


def removable(job: LanguageResult) -> list[float]:
    """Shares of edges that can go in attention and MLP sections."""
    return [
        1 - section.count / section.possible
        for source, section in job.ablation.sections.items()
        if job.kinds[source] in CENTRAL_KINDS
    ]


def positional(profiles: records.Profiles) -> Verdict:
    """L1 of the first directions at the start of the middle block."""
    shares, pooled = [row.share for row in profiles.features], profiles.pooled
    each = ", ".join(f"{share:.0%}" for share in shares)
    return L1.judge(
        f"{profiles.layer}: {pooled:.1%} on average ({each})", pooled >= MIN_POSITIONAL, max(shares) >= HALF,
        f"{100 * (PAPER_POSITIONAL - pooled):.0f} points less",
    )  # fmt: skip


def layer_norms(norms: Sequence[records.NormEdges], middle: int) -> Verdict:
    """L2 of all layer norms: 1-to-1 edges, feature 1 first in the variance, the variance to all outputs."""
    shares = [norm.own for norm in norms]
    heard = [norm for norm in norms if norm.first is not None]
    firsts = sum(norm.first == 1 for norm in heard)
    reaching = [norm.reaches for norm in norms if norm.reaches is not None]
    holds = {
        "1-to-1": min(shares) >= MIN_OWN_EDGE,
        "feature 1 first": bool(heard) and firsts > HALF * len(heard),
        "variance to all": bool(reaching) and min(reaching) >= MIN_VARIANCE_REACH,
    }
    missing = ", ".join(name for name, held in holds.items() if not held)
    mine = next((norm for norm in heard if norm.source == f"ln1.{middle}"), None)
    every = spread([norm.own_of_all for norm in norms], "{:.0%}")
    here = f"own edge {spread(shares, '{:.0%}')} of a pictured output's Ê² (of any output's {every}); "
    here += f"feature 1 drives the variance most in {firsts} of {len(heard)} norms"
    here += f" (ln1.{middle}: feature {mine.first}, {mine.share:.0%})" if mine else ""
    here += f"; the variance reaches {spread(reaching, '{:.0%}')} of the outputs" if reaching else ""
    return L2.judge(here, all(holds.values()), any(holds.values()), f"does not hold: {missing}")


def attention_inputs(rows: Sequence[records.Reach], middle: int) -> Verdict:
    """L3 of the edges needed from the first two inputs of the middle block's attention."""
    row = next((row for row in rows if row.source == f"attn_in.{middle}"), rows[len(rows) // 2])
    first, second = row.first
    wide = [share > MOST_OUTPUTS for share in row.first]
    return L3.judge(
        f"{row.source}: needed edges to {first:.0%} and {second:.0%} of the outputs (ranks "
        f"{row.ranks[0]} and {row.ranks[1]} of {row.inputs} inputs; a median input {row.median:.0%})",
        all(wide), any(wide), f"{sum(wide)} of 2 reach most",
    )  # fmt: skip


def can_go(lib: Sequence[float], pca: Sequence[float]) -> Verdict:
    """L4 of the shares of edges that can go in attention and MLP sections."""
    shares = [*lib, *pca]
    enough = sum(share >= MIN_REMOVABLE for share in shares)
    return L4.judge(
        f"LIB {spread(lib, '{:.0%}')}; PCA {spread(pca, '{:.0%}')}; {enough} of {len(shares)} at least "
        f"{MIN_REMOVABLE:.0%}",
        enough == len(shares), enough >= HALF * len(shares),
        f"{len(shares) - enough} sections keep more than a fifth",
    )  # fmt: skip


def sparser(comparison: Sequence[ComparedEdges], kinds: Mapping[str, records.Kind]) -> Verdict:
    """L5 of LIB's edges required beside PCA's, with the bootstrap interval of their ratio."""
    rows = [row for row in comparison if kinds[row.source] in CENTRAL_KINDS]
    if not rows:
        return L5.open()
    parts = []
    for kind in CENTRAL_KINDS:
        chosen = [row for row in rows if kinds[row.source] == kind]
        fewer = sum(row.lib < row.pca for row in chosen)
        clear = sum(row.interval[1] < 1 for row in chosen)
        against = sum(row.interval[0] > 1 for row in chosen)
        parts.append(
            f"{kind}: LIB fewer in {fewer} of {len(chosen)} ({clear} clearly; PCA clearly in {against})"
        )
    wins = sum(row.lib < row.pca for row in rows)
    return L5.judge(
        "; ".join(parts) + f"; LIB needs {spread([row.ratio for row in rows], '{:.2f}')} times PCA's",
        wins == len(rows), wins > HALF * len(rows), f"{len(rows) - wins} sections to the contrary",
    )  # fmt: skip
