"""Wait-k at test time: k words first, then one for one."""

from .policies import HubPolicy, register_hub_policy


@register_hub_policy("wait_k")
class WaitK(HubPolicy):
    """Target token i is written once `g_i = min(k + i - 1, J)` source *words* are read (Ma et al., 2019).

    This is their test-time wait-k: the model was not trained for it, and takes the k + i - 1 words for a whole
    sentence. Where it would end the translation there, nothing is written, and the token follows as soon as the model
    has one. The policy of the same name that our own models are trained with counts source tokens instead.
    """

    dials = ("min_lag", "max_lag", "wait_k")
    default_k = 3

    def __init__(self, dials):
        self.k = dials.wait_k or self.default_k

    def wanted(self, words_read):
        return words_read - self.k + 1
