import json
from dataclasses import replace

import numpy as np
import pytest

from tapnet.backbones import Conv4
from tapnet.checkpoint import Header
from tapnet.data.episodes import EpisodeSpec
from tapnet.evaluation.candidates import Candidate, ClassOverlap
from tapnet.evaluation.comparison import (
    compare,
    extra_parameters,
    holm,
    html,
    markdown,
    note,
    paired_differences,
    short_names,
    tables,
    write,
)
from tapnet.evaluation.evaluator import Evaluator, seed_spread
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


def with_accuracies(group, means):
    """The group with a run for each mean, whose episodes scatter around it in the same way."""
    episodes = np.random.default_rng(0).normal(0, 0.01, 100)
    run = group.runs[0]
    return replace(group, runs=tuple(replace(run, accuracies=mean + episodes) for mean in means))


def test_holm_gives_the_values_worked_out_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]


def test_spread_over_seeds_is_the_deviation_of_their_means():
    spread = seed_spread([np.array([0.4, 0.6]), np.array([0.6, 0.8])], [3, 4])
    assert spread.accuracy == pytest.approx(0.6)
    assert spread.seed_deviation == pytest.approx(0.2 / 2**0.5)
    assert spread.seed_ci95 == pytest.approx(12.706 * 0.1, rel=1e-4)
    assert spread.ci95 == pytest.approx(1.96 * 0.1)
    assert seed_spread([np.array([0.4, 0.6])], [0]).seed_ci95 is None


def test_runs_that_differ_in_seed_only_are_one_group(result):
    assert [group.spread.seeds for group in result.groups] == [(0, 1), (0,)]
    (pair,) = result.pairs
    assert (pair.first, pair.second) == ("runs/tapnet-0", "runs/protonet")
    first, second = (group.spread.accuracy for group in result.groups)
    assert pair.difference == pytest.approx(second - first)


def test_differences_of_single_runs_are_not_tested(result):
    assert (result.pairs[0].p_value, result.pairs[0].significant) == (None, None)
    page = markdown(result, "plot.svg")
    assert "One run each: differences between runs are not tested." in page
    assert "signific" not in page
    assert "Holm" not in page


def test_differences_between_seeds_decide_and_not_the_number_of_episodes(result):
    first, second = result.groups
    episodes = with_accuracies(first, [0.90, 0.94]), with_accuracies(second, [0.91, 0.95])
    (pair,) = paired_differences(episodes)
    assert pair.ci95 < 1e-9 < 0.05 < pair.seed_ci95  # every episode is one point better, by runs four points apart
    assert pair.p_value > 0.5
    assert not pair.significant


def test_test_over_seeds_is_welchs_where_episodes_do_not_differ(result):
    from scipy.stats import ttest_ind

    first, second = result.groups
    means = [0.90, 0.91, 0.92], [0.95, 0.97, 0.98, 0.96]
    (pair,) = paired_differences([with_accuracies(first, means[0]), with_accuracies(second, means[1])])
    expected = ttest_ind(*means, equal_var=False)
    assert pair.p_value == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval()
    assert pair.seed_ci95 == pytest.approx((interval.high - interval.low) / 2)
    assert pair.significant


def test_an_interval_over_classes_that_is_lost_in_that_over_episodes_is_not_a_number(result):
    run = result.groups[1].runs[0]
    collapsed = replace(run, evaluation=replace(run.evaluation, ci95_bootstrap=None, ci95_bootstrap_at_most=0.0123))
    rows = tables(replace(result, groups=(replace(result.groups[1], runs=(collapsed,)),), pairs=()))["Accuracy"]
    assert rows[0]["over classes"] == "not resolvable (at most 1.23)"


def test_extra_parameters_leave_out_the_backbone_and_what_only_training_needs(small_tapnet):
    assert extra_parameters(small_tapnet) == 8 * 16
    backbone = Conv4((1, 8, 8), widths=(4, 4, 4, 4))
    assert extra_parameters(TadamTC(backbone, num_classes=9)) == extra_parameters(TadamTC(backbone))
    assert extra_parameters(ClassifierBaseline(backbone, num_classes=9)) == 0


def test_comparison_as_a_dictionary_is_json_with_intervals_and_costs(result):
    rows = json.loads(json.dumps(result.as_dict()))["checkpoints"]
    assert all(row["ci95_bootstrap"] > row["ci95"] > 0 for row in rows)
    assert [row["method"] for row in rows] == ["tapnet", "protonet", "tapnet"]
    assert (rows[0]["training_seconds"], rows[0]["transductive"]) == (1800, False)
    training = load_recipe("quickdraw").training
    assert rows[0]["image_passes"] == 7 * training.way * (training.shot + training.query)


def test_networks_on_different_data_are_not_compared(small_tapnet, blobs):
    runs = [candidate("a", small_tapnet, blobs), candidate("b", small_tapnet, replace(blobs, fingerprint="1" * 64))]
    with pytest.raises(ValueError, match="trained on different data"):
        compare(runs, SPEC)


def test_html_report_has_its_plot_in_it_and_needs_no_other_file(result):
    page = html(result)
    assert page.index("Accuracy") < page.index("<svg") < page.index("Costs") < page.index("Paired differences")
    assert not any(word in page for word in ('src="', "<script", "<link"))


def test_markdown_report_has_its_plot_beside_it(result, tmp_path):
    page, plot = write(result, tmp_path / "report.md")
    assert plot.read_text().count("<svg") == 1
    text = page.read_text()
    assert text.index("## Accuracy") < text.index(f"({plot.name})") < text.index("## Costs") < text.index("## Paired")
    assert note(result) in text


def test_names_are_shortened_by_their_common_folder_only():
    assert short_names(["runs/a", "runs/b"]) == {"runs/a": "a", "runs/b": "b"}
    assert short_names(["x/a", "y/a"]) == {"x/a": "x/a", "y/a": "y/a"}


def test_progress_names_the_run_and_what_is_measured(small_tapnet, blobs):
    runs, begun = [candidate(name, small_tapnet, blobs) for name in ("runs/a", "runs/b")], []
    compare(runs, SPEC, progress=lambda description: begun.append(description) or (lambda *_: None))
    assert begun == ["runs/a", "runs/a, over classes", "runs/b", "runs/b, over classes"]
