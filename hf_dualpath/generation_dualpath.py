"""temp"""
from transformers import GenerationMixin
class SimultaneousGenerationMixin(GenerationMixin):
    pass
