"""A run of cases goes on where it was interrupted, as long as the code is the same."""

from argparse import Namespace

import liveness

from elastream_papers.liveness.runs import CaseResult


def test_what_the_same_code_has_tried_is_not_tried_again(tmp_path, monkeypatch):
    ran = []

    def tried(case):
        ran.append(case.seed)
        return CaseResult(case, silent=case.seed % 2, broken=(f"at {case.seed} s records wait",))

    monkeypatch.setattr(liveness, "tried", tried)
    asked = {"quick": False, "first": 7, "policy": None, "kept": tmp_path / "kept.jsonl", "workers": 1}
    liveness.measure(Namespace(cases=3, **asked))
    ran.clear()
    report = liveness.measure(Namespace(cases=5, **asked))
    assert set(ran) == {10, 11}
    assert report.figures["cases"] == 5
    assert report.figures["seeds"] == "7 to 11"
    assert report.figures["silent rounds"] == 3
    assert report.figures["cases broken by property"] == {"records wait": 5}
