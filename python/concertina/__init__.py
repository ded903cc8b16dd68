"""What a training program imports to train under the Concertina operator.

`concertina.torch` is for PyTorch. This module knows no framework: its Run tells a program its
world, its samples and its steps, and leaves the exchange of gradients to the program. Programs
that only read RANK and its companions need neither.
"""

from concertina.agent import AgentError
from concertina.run import Run, Step
from concertina.session import WorldChanged
from concertina.world import World

__all__ = ["AgentError", "Run", "Step", "World", "WorldChanged"]
