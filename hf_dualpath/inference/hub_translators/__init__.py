"""Any encoder-decoder translator of the Hub as a live stream: policies over models that read whole sentences.

`translator.py` is the model that the rest of the package sees, `families.py` what the published formats differ in.
"""

from .align_att import AlignAtt
from .local_agreement import LocalAgreement
from .policies import HubPolicy, register_hub_policy
from .translator import HubTranslator, load_translator, whole_sentence_model
from .wait_k import WaitK


__all__ = [
    "AlignAtt",
    "HubPolicy",
    "HubTranslator",
    "LocalAgreement",
    "WaitK",
    "load_translator",
    "register_hub_policy",
    "whole_sentence_model",
]
