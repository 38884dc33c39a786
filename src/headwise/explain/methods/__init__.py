"""The methods, in the order in which they are shown: one line each."""

from headwise.explain.method import METHODS
from headwise.explain.methods.ablation import Ablation
from headwise.explain.methods.decomposition import Decomposition
from headwise.explain.methods.gradient_input import GradientInput
from headwise.explain.methods.gradient_weights import GradientWeights
from headwise.explain.methods.integrated import Integrated
from headwise.explain.methods.knockout import Knockout
from headwise.explain.methods.nearness import Nearness
from headwise.explain.methods.norms import Norms
from headwise.explain.methods.occlusion import Occlusion
from headwise.explain.methods.rollout import Rollout
from headwise.explain.methods.weights import Weights
from headwise.texts import mark as N_

METHODS.add("weights", Weights())
METHODS.add("rollout", Rollout())
METHODS.add("norms", Norms())
METHODS.add("gradient-input", GradientInput())
METHODS.add("gradient-weights", GradientWeights())
METHODS.add("integrated", Integrated())
METHODS.add("nearness", Nearness())
METHODS.add("hidden", Occlusion("hidden", N_("tokens hidden")))
METHODS.add("replaced", Occlusion("replaced", N_("tokens replaced")))
METHODS.add("edges", Knockout())
METHODS.add("ablation-zero", Ablation("ablation-zero", N_("heads set to zero"), "zero"))
METHODS.add("ablation-mean", Ablation("ablation-mean", N_("heads set to their mean"), "mean"))
METHODS.add("decomposition", Decomposition())
