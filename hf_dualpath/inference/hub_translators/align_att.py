"""AlignAtt: a token may be written if what it looks at will not change."""

from .policies import HubPolicy, register_hub_policy


@register_hub_policy("align_att")
class AlignAtt(HubPolicy):
    """Writes tokens until one attends most to the last f source tokens (Papi et al., 2023).

    Target token i is aligned to `a_i = argmax_j A[i, j]`, where A is the cross-attention, averaged over heads and
    layers, and j runs over the tokens of the text alone: language codes and the end of the sentence draw attention and
    mean nothing here. It is written at the first prefix of J' tokens where `a_i <= J' - f`. f is the dial `frontier`.
    """

    dials = ("min_lag", "max_lag", "frontier")
    needs_attention = True

    def __init__(self, dials):
        self.f = dials.frontier

    def stops(self, alignment, tokens_read):
        return alignment >= tokens_read - self.f
