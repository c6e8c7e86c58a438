"""LocalAgreement-n: what the last n hypotheses agree on is stable."""

from os.path import commonprefix

from .policies import HubPolicy, register_hub_policy


@register_hub_policy("local_agreement")
class LocalAgreement(HubPolicy):
    """Writes the longest common prefix of the last n hypotheses (Liu et al., 2020; n = 2, as in Polák et al., 2022).

    With `h_c` the translation of the first c source words, target token i is written at the first c where
    `h_{c-n+1}, ..., h_c` exist and have the same first i tokens. n is the dial `agreement`; with n = 1 each
    hypothesis is written as it is.
    """

    dials = ("min_lag", "max_lag", "agreement")

    def __init__(self, dials):
        self.n = dials.agreement
        self.hypotheses: list[list[int]] = []

    def ready(self, hypothesis, written):
        self.hypotheses = [*self.hypotheses, hypothesis][-self.n :]
        return len(commonprefix(self.hypotheses)) if len(self.hypotheses) == self.n else 0
