"""The picture of a plan: the output of `holdfast plan` for the command beside it in docs/planning.md."""

from holdfast.cli.commands.plan import asked, mtbf_of
from holdfast.cli.render.plan_text import in_words
from holdfast.quantities import duration_ms
from holdfast.sim.planning import Question
from holdfast.sim.planning_plot import svg

COMMAND = (
    "holdfast plan --nodes 10 --churn mtbf=12h --job-length 10h --checkpoint-every 2h --checkpoint-cost 30s --runs 60"
)
RUNS = 60


def plan_picture() -> str:
    question = Question(
        nodes=10,
        mtbf_ms=mtbf_of("mtbf=12h"),
        return_ms=duration_ms("30m"),
        length_ms=duration_ms("10h"),
        every_ms=duration_ms("2h"),
        cost_ms=duration_ms("30s"),
        prepare_ms=duration_ms("10s"),
    )
    return svg(asked(question, 0, RUNS, None), in_words(question))
