"""`dyno verify`: do engines give the same tokens, and if not, is that rounding or another model?

Each engine is an *arm* (a server, or in tests a library) that generates greedily and scores fixed text; `observe` asks one
arm after the other, `judge` compares what they said by the rules of `results.agreement`; `compare` does all of it with
servers of its own, and `after_run` for the engines of a run.
"""

from harness.verify.arm import Arm, Scores, ServerArm
from harness.verify.judge import judge
from harness.verify.observe import Observed, observe
from harness.verify.prompts import Prompt, fixed_prompts

__all__ = ["Arm", "Observed", "Prompt", "Scores", "ServerArm", "fixed_prompts", "judge", "observe"]
