"""SimulEval agents: measure a checkpoint with the field's own tool.

    simuleval --agent-class hf_dualpath.apps.simuleval_agent.DualPathAgent --model DIR --direction de-en \\
        --source test.de --target test.en --output result --quality-metrics BLEU --latency-metrics AL LAAL AP DAL

The same agent serves in SimulEval's standalone form (`--standalone`, then `--remote-eval`). The server has no
password: it answers this machine only, unless `--host` gives another address.
"""

from argparse import ArgumentParser, Namespace
from functools import partialmethod

from simuleval.agents import TextToTextAgent
from simuleval.agents.actions import Action, ReadAction, WriteAction
from simuleval.agents.states import AgentStates
from simuleval.data.segments import Segment
from simuleval.utils import entrypoint
from tornado.web import Application

from hf_dualpath.inference.events import Write
from hf_dualpath.inference.streaming import SimultaneousTranslator
from hf_dualpath.model.policies_dualpath import Dials


def listen_on(address: str):
    """SimulEval 1.1.4 starts its server on all interfaces and takes no address, so tornado, below it, is told one."""
    Application.listen = partialmethod(Application.listen, address=address)


@entrypoint
class DualPathAgent(TextToTextAgent):
    """Words in, words out: every decision is [`SimultaneousTranslator`]'s."""

    def __init__(self, args: Namespace):
        self.translator = SimultaneousTranslator.from_pretrained(
            args.model,
            args.direction,
            splitter=None,
            trust_remote_code=args.trust_remote_code,
            policy=args.policy,
            source_language=args.source_language,
            target_language=args.target_language,
            **Dials.given_in(args),
        )
        if args.standalone:
            listen_on(args.host)
        super().__init__(args)

    @staticmethod
    def add_args(parser: ArgumentParser):
        parser.add_argument("--model", required=True, help="checkpoint: a folder or a Hub id")
        parser.add_argument("--direction", help="such as de-en; default: the checkpoint's forward direction")
        parser.add_argument("--write-threshold", type=float, help="in (0, 1]; lower writes earlier")
        parser.add_argument("--min-lag", type=int, help="see dualpath translate --help")
        parser.add_argument("--max-lag", type=int, help="see dualpath translate --help")
        parser.add_argument("--wait-k", type=int, help="another k for a wait-k model")
        parser.add_argument("--agreement", type=int, help="of local_agreement: hypotheses that must agree")
        parser.add_argument("--frontier", type=int, help="of align_att: last source tokens not to look at")
        parser.add_argument("--policy", help="for translators of the Hub, see dualpath translate --help")
        parser.add_argument("--source-language", help="for translators of the Hub, in their codes")
        parser.add_argument("--target-language", help="for translators of the Hub, in their codes")
        parser.add_argument("--trust-remote-code", action="store_true", help="let Python files of the checkpoint run")
        parser.add_argument(
            "--host", default="127.0.0.1", help="address that --standalone serves (default: this machine only)"
        )

    def reset(self):
        super().reset()
        self.translator.reset()
        self.pushed = 0

    def pop(self, states: AgentStates | None = None) -> Segment:
        segment = super().pop(states)
        segment.tgt_lang = None  # SimulEval 1.1.4 leaves a type here, which its own server cannot send
        return segment

    def policy(self, states: AgentStates | None = None) -> Action:
        states = self.states if states is None else states
        events = []
        for word in states.source[self.pushed :]:
            events += self.translator.push(word + " ")
        self.pushed = len(states.source)
        if states.source_finished:
            events += self.translator.finish()
        words = " ".join(event.word for event in events if isinstance(event, Write))
        if states.source_finished:
            return WriteAction(words, finished=True)
        return WriteAction(words, finished=False) if words else ReadAction()
