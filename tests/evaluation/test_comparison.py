import json

import numpy as np
import pytest

from tapnet.backbones import Conv4
from tapnet.checkpoint import Header
from tapnet.data.episodes import EpisodeSpec
from tapnet.evaluation.candidates import Candidate
from tapnet.evaluation.class_overlap import ClassOverlap
from tapnet.evaluation.comparison import compare, extra_parameters, seed_spread
from tapnet.evaluation.comparison_report import html, markdown, short_names, write
from tapnet.evaluation.evaluator import Evaluator
from tapnet.evaluation.intervals import holm, paired_p_value
from tapnet.methods import ClassifierBaseline, PrototypicalNetwork, TadamTC
from tapnet.recipe import load_recipe

SPEC = EpisodeSpec(5, 1, 3, 20)
UNSEEN = ClassOverlap(10, 0, 0, False)


def candidate(name, method, images, changes=()):
    header = Header(load_recipe("quickdraw", list(changes)), (1, 8, 8), episode=7)
    return Candidate(name, header, Evaluator(method, images), UNSEEN, training_seconds=1800)


@pytest.fixture
def result(small_tapnet, blobs):
    """Two seeds of TapNet, and Prototypical Networks."""
    other = PrototypicalNetwork(Conv4((1, 8, 8), widths=(16, 16, 16, 16))).eval()
    runs = [
        candidate("runs/tapnet-0", small_tapnet, blobs),
        candidate("runs/protonet", other, blobs, ["method={name: protonet}"]),
        candidate("runs/tapnet-1", small_tapnet, blobs, ["seed=1"]),
    ]
    return compare(iter(runs), SPEC)


def test_a_comparison_names_methods_as_recipes_do(result):
    assert [run.method for run in result.runs] == ["tapnet", "protonet", "tapnet"]


def test_holm_gives_the_values_worked_out_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]


def test_p_value_agrees_with_scipys_paired_test():
    from scipy.stats import ttest_1samp

    differences = np.random.default_rng(0).normal(0.1, 1, 50)
    assert paired_p_value(differences) == pytest.approx(ttest_1samp(differences, 0).pvalue)


def test_p_value_of_no_difference_is_one():
    assert paired_p_value(np.zeros(5)) == 1


def test_spread_over_seeds_is_the_deviation_of_their_means():
    spread = seed_spread([np.array([0.4, 0.6]), np.array([0.6, 0.8])], [3, 4])
    assert spread.accuracy == pytest.approx(0.6)
    assert spread.seed_deviation == pytest.approx(0.2 / 2**0.5)
    assert spread.ci95 == pytest.approx(1.96 * 0.1)


def test_spread_of_one_seed_is_not_known():
    assert seed_spread([np.array([0.4, 0.6])], [0]).seed_ci95 is None


def test_runs_that_differ_in_seed_only_are_one_group(result):
    assert [group.spread.seeds for group in result.groups] == [(0, 1), (0,)]
    assert [(pair.first, pair.second) for pair in result.pairs] == [("runs/tapnet-0", "runs/protonet")]


def test_seeds_of_one_recipe_have_no_table_of_pairs(small_tapnet, blobs):
    runs = [candidate(f"runs/{seed}", small_tapnet, blobs, [f"seed={seed}"]) for seed in range(2)]
    page = markdown(compare(runs, SPEC))
    assert "(2 seeds)" in page
    assert "## Paired" not in page


def test_difference_of_a_pair_is_that_of_its_accuracies(result):
    first, second = (group.spread.accuracy for group in result.groups)
    assert result.pairs[0].difference == pytest.approx(second - first)


def test_extra_parameters_are_those_besides_the_backbone(small_tapnet):
    assert extra_parameters(small_tapnet) == 8 * 16


def test_extra_parameters_leave_out_what_only_training_needs():
    backbone = Conv4((1, 8, 8), widths=(4, 4, 4, 4))
    assert extra_parameters(TadamTC(backbone, num_classes=9)) == extra_parameters(TadamTC(backbone))
    assert extra_parameters(ClassifierBaseline(backbone, num_classes=9)) == 0


def test_comparison_as_a_dictionary_is_json_with_both_intervals(result):
    kept = json.loads(json.dumps(result.as_dict()))
    assert all(row["ci95_bootstrap"] > row["ci95"] > 0 for row in kept["checkpoints"])
    assert kept["checkpoints"][0]["training_seconds"] == 1800
    assert kept["checkpoints"][0]["transductive"] is False


def test_networks_on_different_data_are_not_compared(small_tapnet, blobs):
    from dataclasses import replace

    runs = [candidate("a", small_tapnet, blobs), candidate("b", small_tapnet, replace(blobs, fingerprint="1" * 64))]
    with pytest.raises(ValueError, match="trained on different data"):
        compare(runs, SPEC)


def test_report_has_its_plot_before_the_long_list_of_pairs(result):
    page = html(result)
    assert page.index("Accuracy") < page.index("<svg") < page.index("Costs") < page.index("Paired differences")
    page = markdown(result, "plot.svg")
    assert page.index("## Accuracy") < page.index("(plot.svg)") < page.index("## Costs") < page.index("## Paired")


def test_html_report_needs_no_other_file(result):
    page = html(result)
    assert "<svg" in page
    assert not any(word in page for word in ('src="', "<script", "<link"))


def test_markdown_report_names_the_correction_and_its_plot(result, tmp_path):
    page, plot = write(result, tmp_path / "report.md")
    assert plot.read_text().count("<svg") == 1
    assert f"({plot.name})" in page.read_text()
    assert "Holm's correction for 1 pairs" not in markdown(result)
    assert "with Holm's correction" in markdown(result)


def test_names_are_shortened_by_their_common_folder_only():
    assert short_names(["runs/a", "runs/b"]) == {"runs/a": "a", "runs/b": "b"}
    assert short_names(["x/a", "y/a"]) == {"x/a": "x/a", "y/a": "y/a"}


def test_progress_names_the_run_and_what_is_measured(small_tapnet, blobs):
    runs, begun = [candidate(name, small_tapnet, blobs) for name in ("runs/a", "runs/b")], []

    def start(description):
        begun.append(description)
        return lambda *_: None

    compare(runs, SPEC, progress=start)
    assert begun == ["runs/a", "runs/a, over classes", "runs/b", "runs/b, over classes"]
